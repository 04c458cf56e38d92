"""`python -m bench hop`: what the machine itself carries, without shaped links: origin -> relay -> relay on loopback.

Real daemons and the real publisher: with the payload over TCP connections of its own, over gRPC, and over gRPC with
glibc's malloc as it comes. Beside them, in the same run, a chain of bare sockets that hash and store the same bytes
(`bench.barehop`: what a relay cannot do without), and one bare TCP stream.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from rich.table import Table

from bench import barehop
from bench.results import RESULTS, write_results
from chappe.cli.localfleet import LocalFleet, RelaySpec, relay_specs
from chappe.cli.process import Process
from chappe.cli.settings import Flat, Settings, Size
from chappe.errors import UsageError
from chappe.origin.hashing import hash_snapshot
from chappe.origin.scan import scan
from chappe.publisher import AsyncPublisher

FAST = ("--downlink", "10gbit", "--uplink", "10gbit")
BARE = "bare sockets"
KINDS = {"TCP": ("auto", True), "gRPC": ("grpc", True), "gRPC, glibc's malloc": ("grpc", False)}
"""What carries the payload, and whether malloc's thresholds are raised."""
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


async def broadcast(directory: Path, snapshot: Path, kind: str) -> Run:
    """Two relays in one chain, fresh stores."""
    transport, thresholds = KINDS[kind]
    fleet = Fleet(directory, relay_specs(2, (*FAST, "--transport", transport)))
    fleet.thresholds = thresholds
    async with fleet, AsyncPublisher(fleet.address, uplink="10gbit", base_cache=False) as publisher:
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


def _show(runs: list[Run], rates: dict[str, list[float]], size_bytes: int) -> None:
    repeats = sum(run.kind == BARE for run in runs)
    table = Table(title=f"origin -> relay -> relay, {size_bytes / 1e9:.2f} GB, medians of {repeats}")
    for heading in ("payload over", "goodput GB/s", "of bare", "middle CPU s/GB", "of bare", "tail CPU s/GB", "RSS MB"):
        table.add_column(heading, justify="right")

    def median(kind: str, key: str) -> float:
        return statistics.median(getattr(run, key) for run in runs if run.kind == kind)

    for kind in (BARE, *KINDS):
        goodput, middle = median(kind, "goodput_gb_per_s"), median(kind, "middle_cpu_s_per_gb")
        most = max(max(r.middle_rss_max_bytes, r.tail_rss_max_bytes) for r in runs if r.kind == kind)
        table.add_row(
            kind,
            f"{goodput:.2f}",
            f"{goodput / median(BARE, 'goodput_gb_per_s'):.2f}",
            f"{middle:.2f}",
            f"{middle / median(BARE, 'middle_cpu_s_per_gb'):.2f}",
            f"{median(kind, 'tail_cpu_s_per_gb'):.2f}",
            f"{most / 1e6:.0f}",
        )
    console = Console()
    console.print(table)
    for name, values in rates.items():
        console.print(f"{name}: {statistics.median(values):.2f}")


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
    with tempfile.TemporaryDirectory(prefix="chappe-hop-", dir=settings.directory) as base:
        runs, rates = asyncio.run(_measure(Path(base), settings.size, settings.repeats))
    _show(runs, rates, settings.size)
    parameters = settings.model_dump(mode="json", exclude={"output"})
    write_results(settings.output, "hop", parameters, [asdict(run) for run in runs], rates=rates)
    return 0
