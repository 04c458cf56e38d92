"""Chappe's own daemons on shaped links: a trainer host with coordinator and publisher, and a host for each relay.

    namespace "trainer": coordinator :7400, `chappe publish` :7401      tbf: the origin's uplink
    namespace "wN":      relayd :7401, its metrics on loopback :7402    tbf: the worker's uplink and downlink

This process stays in the machine's own network, which none of them can reach: metrics come through sockets that a
thread opens inside the namespace (`connect_within`), on its loopback, so that they also tell of a host whose link is
down, and cost its link nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import json
import os
import shutil
import socket
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from prometheus_client.parser import text_string_to_metric_families
from safetensors.numpy import save_file

from bench.links import Host, Link, LinksUnavailableError, Network
from bench.tunlink import enter_namespace
from chappe.cli.process import FleetError, Process

COORDINATOR_PORT, DATA_PORT, HTTP_PORT = 7400, 7401, 7402
ANSWER_TIMEOUT_S = 5.0
JOIN_TIMEOUT_S = 60.0
Status = dict[str, Any]


def connect_within(namespace: str, port: int, timeout_s: float = ANSWER_TIMEOUT_S) -> socket.socket:
    """A socket connected to loopback inside a network namespace, for use from outside. Raises OSError.

    A namespace belongs to a thread: a short-lived one enters it, and the socket stays where it was made.
    """
    made: list[socket.socket | OSError] = []

    def connect() -> None:
        try:
            enter_namespace(namespace)
            made.append(socket.create_connection(("127.0.0.1", port), timeout=timeout_s))
        except OSError as error:
            made.append(error)

    thread = threading.Thread(target=connect, name=f"connect within {namespace}")
    thread.start()
    thread.join()
    if isinstance(made[0], OSError):
        raise made[0]
    return made[0]


class Scraper:
    """Reads the metrics of one daemon, over one connection that it keeps. Not for two threads at once."""

    def __init__(self, namespace: str, port: int = HTTP_PORT) -> None:
        self._namespace, self._port = namespace, port
        self._connection: http.client.HTTPConnection | None = None

    def read(self) -> dict[str, float] | None:
        """Samples without labels by name; None when it does not answer."""
        try:
            if self._connection is None:
                self._connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=ANSWER_TIMEOUT_S)
                self._connection.sock = connect_within(self._namespace, self._port)
            self._connection.request("GET", "/metrics")
            text = self._connection.getresponse().read().decode()
        except (OSError, http.client.HTTPException):
            self.close()
            return None
        families = text_string_to_metric_families(text)
        return {sample.name: sample.value for family in families for sample in family.samples if not sample.labels}

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@dataclass(frozen=True, slots=True)
class Worker:
    """A relay's name, its link, and what it declares of it."""

    name: str
    link: Link
    flags: tuple[str, ...] = ()


def declared(link: Link) -> tuple[str, ...]:
    """The link's rates as flags of `relayd`."""
    rates = {"--uplink": link.up_bytes_per_s, "--downlink": link.down_bytes_per_s}
    return tuple(text for flag, rate in rates.items() if rate is not None for text in (flag, f"{round(rate)}B"))


@dataclass
class ShapedFleet:
    """`async with ShapedFleet(directory, link, workers) as fleet`: all joined; no process and no namespace afterwards.

    Keeps in `directory`: `coordinator.db`, the stores `<name>/`, and `logs/<name>.log`.
    """

    directory: Path
    trainer: Link
    workers: Sequence[Worker]
    coordinator_flags: tuple[str, ...] = ()
    relay_module: str = "relayd"
    network: Network = field(init=False)
    processes: dict[str, Process] = field(init=False, default_factory=dict)

    async def __aenter__(self) -> Self:
        (self.directory / "logs").mkdir(parents=True, exist_ok=True)
        self.network = Network()
        self.network.__enter__()
        try:
            self.network.host("trainer", self.trainer)
            for worker in self.workers:
                self.network.host(worker.name, worker.link)
            await self.start_coordinator()
            await asyncio.gather(*(self._start_relay(worker) for worker in self.workers))
            await self.wait_joined(worker.name for worker in self.workers)
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def address(self) -> str:
        """HOST:PORT of the coordinator."""
        return f"{self.network.hosts['trainer'].address}:{COORDINATOR_PORT}"

    def host(self, name: str) -> Host:
        return self.network.hosts[name]

    def store(self, name: str) -> Path:
        return self.directory / name

    def scraper(self, name: str) -> Scraper:
        return Scraper(self.network.namespace(name))

    async def start_coordinator(self) -> None:
        """Start it, also again after it has ended: its state and its address are kept."""
        state = f"sqlite:///{self.directory.resolve() / 'coordinator.db'}"
        flags = ("--listen", self.address, "--state", state, "--insecure", *self.coordinator_flags)
        arguments = ("coordinator", *flags, "--log-format", "json")
        await (await self._start("coordinator", "trainer", "chappe.cli.main", arguments)).wait_ready()

    async def add_worker(self, worker: Worker) -> None:
        """A host that was not there before, and its relay."""
        self.network.host(worker.name, worker.link)
        await self._start_relay(worker)

    async def _start_relay(self, worker: Worker) -> None:
        listen = f"{self.network.hosts[worker.name].address}:{DATA_PORT}"
        arguments = ["--coordinator", self.address, "--store", str(self.store(worker.name)), "--name", worker.name]
        arguments += ["--listen", listen, "--http", f"127.0.0.1:{HTTP_PORT}", "--insecure", "--log-format", "json"]
        arguments += [*declared(worker.link), *worker.flags]
        await (await self._start(worker.name, worker.name, self.relay_module, arguments)).wait_ready()

    async def start_publish(
        self, snapshot: Path, *flags: str, payload: str = "full", base_cache: str = "none"
    ) -> Process:
        """`chappe publish` on the trainer host; its JSON is the process's output. In full, whatever was measured
        before, unless something else is said."""
        host = self.network.hosts["trainer"]
        arguments = ["publish", str(snapshot), "--coordinator", self.address, "--insecure", "--json"]
        arguments += ["--base-cache", base_cache, "--payload", payload]
        arguments += ["--listen", f"{host.address}:{DATA_PORT}", *flags]
        if host.link.up_bytes_per_s is not None:
            arguments += ["--uplink", f"{round(host.link.up_bytes_per_s)}B"]
        return await self._start("publish", "trainer", "chappe.cli.main", arguments, capture_stdout=True)

    async def start_trainer(self, module: str, run: Mapping[str, Any]) -> Process:
        """A program of the bench on the trainer host, with a publisher of its own. It is given `run` as JSON, and in it
        the coordinator and where to listen; in `processes` it is `publish`."""
        host = self.network.hosts["trainer"]
        where = {
            "coordinator": self.address,
            "listen": f"{host.address}:{DATA_PORT}",
            "uplink": host.link.up_bytes_per_s,
        }
        return await self._start("publish", "trainer", module, [json.dumps({**where, **run})])

    async def status(self) -> Status:
        """What `chappe status --json` says. Raises FleetError when the coordinator does not answer."""
        arguments = ("status", "--coordinator", self.address, "--insecure", "--json")
        process = await Process.start(
            *("status", "chappe.cli.main", arguments, self.directory / "logs" / "status.log"),
            capture_stdout=True,
            within=self._within("trainer"),
        )
        output = await process.output()
        if process.returncode != 0:
            raise FleetError(f"chappe status failed:\n{process.tail()}")
        status: Status = json.loads(output)
        return status

    async def planned_chains(self) -> list[list[str]]:
        """The first publication's chains as they were laid out: what the coordinator logged of it."""
        line = await self.processes["coordinator"].logged(lambda line: line.get("event") == "planned")
        return [chain.split(",") for chain in line["chains"]]

    async def wait_joined(self, names: Iterable[str]) -> None:
        wanted = set(names)
        async with asyncio.timeout(JOIN_TIMEOUT_S):
            while not wanted <= {r["name"] for r in (await self.status())["relays"] if r["state"] != "absent"}:
                pass  # each question starts a process, which is pause enough

    async def stop(self) -> None:
        """End the relays at once: nobody is to be moved any more."""
        running = [p for p in self.processes.values() if p.returncode is None]
        await asyncio.gather(*(process.kill() for process in running))
        self.network.close()

    async def _start(
        self, name: str, host: str, module: str, arguments: Sequence[str], *, capture_stdout: bool = False
    ) -> Process:
        log_path = self.directory / "logs" / f"{name}.log"
        within = self._within(host)
        process = await Process.start(
            name, module, arguments, log_path, capture_stdout=capture_stdout, within=within, environment=_QUIET
        )
        self.processes[name] = process
        return process

    def _within(self, host: str) -> tuple[str, ...]:
        ip = shutil.which("ip")
        if ip is None:
            raise LinksUnavailableError("shaped links need ip (package iproute2)")
        return (ip, "netns", "exec", self.network.namespace(host))


_QUIET = {"NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}


def make_snapshot(directory: Path, size_bytes: int, seed: int = 0) -> Path:
    """A model directory with one safetensors file of about this size, of bytes that do not compress."""
    directory.mkdir(parents=True)
    values = np.random.default_rng(seed).integers(0, 1 << 16, size_bytes // 2, dtype=np.uint16)
    save_file({"model.weight": values}, directory / "model.safetensors", metadata={"format": "np"})
    (directory / "config.json").write_text(json.dumps({"seed": seed}))
    return directory


def digests(directory: Path) -> dict[str, str]:
    """SHA-256 of every file below a directory, by relative path: not the digests that Chappe itself compares."""
    found = {}
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                found[path.relative_to(directory).as_posix()] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def flip_byte(path: Path, offset: int) -> None:
    """Rot: one bit changes on the disk behind the back of who stored it."""
    with path.open("r+b", buffering=0) as file:
        before = os.pread(file.fileno(), 1, offset)
        os.pwrite(file.fileno(), bytes([before[0] ^ 1]), offset)
