"""`python -m bench hop`: what the machine itself carries, without shaped links: origin -> relay -> relay on loopback.

Real daemons and the real publisher: with the payload over TCP connections of its own and over gRPC, both also with
mutual TLS, and over gRPC with glibc's malloc as it comes. Beside them, in the same run, a chain of bare sockets that
hash and store the same bytes (`bench.barehop`: what a relay cannot do without), and one bare TCP stream.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Annotated, Any

from bench import barehop, scratch
from bench.hopshow import BARE, show
from bench.results import RESULTS, write_results
from chappe.cli.localfleet import LocalFleet, RelaySpec, relay_specs
from chappe.cli.process import Process
from chappe.cli.settings import Flat, Settings, Size, TlsSettings
from chappe.errors import UsageError
from chappe.hop.net import Tls, load_tls
from chappe.keys import init_fleet, issue
from chappe.origin.hashing import hash_snapshot
from chappe.origin.scan import scan
from chappe.publisher import AsyncPublisher

FAST = ("--downlink", "10gbit", "--uplink", "10gbit")
ORIGIN = "origin"
_RECEIVER = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
peer, _ = server.accept()
buffer, left = bytearray(1 << 20), int(sys.argv[1])
while left > 0:
    left -= peer.recv_into(buffer)
print("done", flush=True)
"""


@dataclass(frozen=True, slots=True)
class Carrier:
    """What carries the payload, with which security, and whether malloc's thresholds are raised."""

    transport: str
    tls: bool = False
    thresholds: bool = True


KINDS = {
    "TCP": Carrier("auto"),
    "TCP, TLS": Carrier("auto", tls=True),
    "gRPC": Carrier("grpc"),
    "gRPC, TLS": Carrier("grpc", tls=True),
    "gRPC, glibc's malloc": Carrier("grpc", thresholds=False),
}


@dataclass(frozen=True, slots=True)
class Run:
    """One broadcast. Rates are 10^9 bytes per second, CPU is seconds per 10^9 bytes, memory is bytes."""

    kind: str
    t_bcast_s: float
    goodput_gb_per_s: float
    middle_cpu_s_per_gb: float
    tail_cpu_s_per_gb: float
    middle_rss_max_bytes: int
    tail_rss_max_bytes: int


class Fleet(LocalFleet):
    """A local fleet whose relays may run with glibc's default malloc."""

    thresholds = True

    async def start_relay(self, spec: RelaySpec, *, module: str = "relayd") -> Process:
        return await super().start_relay(spec, module=module if self.thresholds else "bench.plain_relayd")


def make_sparse_snapshot(path: Path, size_bytes: int) -> None:
    """One safetensors file of exactly this size, holes where the tensor is: reading it costs no disk."""
    header_bytes = 128
    span = size_bytes - header_bytes
    text = f'{{"w":{{"dtype":"U8","shape":[{span}],"data_offsets":[0,{span}]}}}}'.encode()
    with path.open("wb") as file:
        file.write((header_bytes - 8).to_bytes(8, "little") + text + b" " * (header_bytes - 8 - len(text)))
        file.truncate(size_bytes)


def cpu_s(process: Process) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_max_bytes(process: Process) -> int:
    """The highest resident set of a process so far."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10


def bare_tcp_gb_per_s(size_bytes: int) -> float:
    """The floor: one stream on loopback, blocking calls of 1 MiB, nothing hashed and nothing stored."""
    command = [sys.executable, "-c", _RECEIVER, str(size_bytes)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdout is not None
        port = int(receiver.stdout.readline())
        block = bytes(1 << 20)
        started = time.perf_counter()
        with socket.create_connection(("127.0.0.1", port)) as peer:
            for _ in range(-(-size_bytes // len(block))):
                peer.sendall(block)
            receiver.stdout.readline()
        return size_bytes / (time.perf_counter() - started) / 1e9


def hash_gb_per_s(snapshot: Path) -> float:
    """What `publish` hashes a file at: pread, leaves, chunks, with threads."""
    scanned = scan(snapshot)
    started = time.perf_counter()
    hash_snapshot(scanned)
    return scanned.snapshot_bytes / (time.perf_counter() - started) / 1e9


def _certificates(directory: Path, names: Sequence[str]) -> dict[str, TlsSettings]:
    """A fleet's CA, and mutual TLS for each of these nodes."""
    init_fleet(directory)
    found = {name: issue(directory, name) for name in names}
    return {n: TlsSettings(tls_cert=f.cert, tls_key=f.key, tls_ca=f.ca) for n, f in found.items()}


def _flags(tls: TlsSettings) -> tuple[str, ...]:
    return ("--tls-cert", str(tls.tls_cert), "--tls-key", str(tls.tls_key), "--tls-ca", str(tls.tls_ca))


def _fleet(directory: Path, carrier: Carrier) -> tuple[Fleet, Tls | None]:
    """Two relays, and what the publisher needs to speak with them."""
    specs = relay_specs(2, (*FAST, "--transport", carrier.transport))
    if not carrier.tls:
        fleet, origin = Fleet(directory, specs), None
    else:
        names = ("coordinator", ORIGIN, "me", *(spec.name for spec in specs))
        of = _certificates(directory / "keys", names)
        relays = tuple(RelaySpec(spec.name, (*spec.flags, *_flags(of[spec.name]))) for spec in specs)
        fleet = Fleet(directory, relays, coordinator_flags=_flags(of["coordinator"]), tls=of["me"])
        origin = load_tls(of[ORIGIN].tls_cert, of[ORIGIN].tls_key, of[ORIGIN].tls_ca)
    fleet.thresholds = carrier.thresholds
    return fleet, origin


async def broadcast(directory: Path, snapshot: Path, kind: str) -> Run:
    """Two relays in one chain, fresh stores."""
    fleet, tls = _fleet(directory, KINDS[kind])
    async with fleet, AsyncPublisher(fleet.address, uplink="10gbit", base_cache=False, tls=tls) as publisher:
        middle, tail = fleet.workers.values()
        before = cpu_s(middle), cpu_s(tail)
        result = await (await publisher.publish(snapshot, version=1, payload="full", chains=1)).wait(1.0, timeout_s=600)
        gigabytes, took_s = result.payload_bytes / 1e9, result.t_bcast["1.0"]
        assert took_s is not None
        return Run(
            kind,
            took_s,
            gigabytes / took_s,
            (cpu_s(middle) - before[0]) / gigabytes,
            (cpu_s(tail) - before[1]) / gigabytes,
            rss_max_bytes(middle),
            rss_max_bytes(tail),
        )


async def _measure(base: Path, size_bytes: int, repeats: int) -> tuple[list[Run], dict[str, Any]]:
    snapshot = base / "model.safetensors"
    make_sparse_snapshot(snapshot, size_bytes)
    rates: dict[str, list[float]] = {"bare_tcp_gb_per_s": [], "hash_gb_per_s": []}
    runs: list[Run] = []
    for repeat in range(repeats):
        rates["bare_tcp_gb_per_s"].append(bare_tcp_gb_per_s(size_bytes))
        rates["hash_gb_per_s"].append(hash_gb_per_s(snapshot))
        runs.append(Run(BARE, *astuple(await asyncio.to_thread(barehop.measure, snapshot, base))))
        for kind in KINDS:
            directory = base / f"run-{repeat}"
            runs.append(await broadcast(directory, snapshot, kind))
            shutil.rmtree(directory)
    return runs, rates


class HopSettings(Settings):
    size: Size = 1 << 30
    """Of the snapshot."""
    repeats: int = 3
    """Runs of each kind, alternated."""
    directory: Path = Path("/dev/shm")
    """Where snapshot and stores lie: in memory, so that it is the hop that is measured."""
    output: Path = RESULTS / "hop.json"
    """The JSON to write."""


_DEFAULTS = HopSettings()


def hop(*, settings: Annotated[HopSettings, Flat] = _DEFAULTS) -> int:
    """Goodput, CPU and memory of relays on loopback, over TCP and gRPC, beside bare sockets; hashing; bare TCP."""
    if settings.repeats < 1 or settings.size < 1 << 20:
        raise UsageError("--repeats must be 1 or more, and --size at least 1MiB")
    with tempfile.TemporaryDirectory(prefix=scratch.prefix("hop"), dir=settings.directory) as base:
        runs, rates = asyncio.run(_measure(Path(base), settings.size, settings.repeats))
    rows = [asdict(run) for run in runs]
    show(rows, rates, settings.size)
    parameters = settings.model_dump(mode="json", exclude={"output"})
    write_results(settings.output, "hop", parameters, rows, rates=rates)
    return 0
