"""`python -m bench scale --topology striped`: what K stripes cost when hundreds of real relays take them.

Real relays in few processes, each limited to a link of its own, a real publisher in this one: K parents and up to K
children for every relay. Counted is what all of them hold at once, at its most while the broadcast runs, over what they
held before it; and the CPU that they take. Links are slow enough for the machine, and the payload long enough to be
worth stripes. So many relays that begin at once share an event loop here, and each has one of its own elsewhere: leases
and stall timeouts are longer than usual, so that one is not lost because of the others.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.hop import cpu_s, make_sparse_snapshot
from chappe.cli.localfleet import LocalFleet
from chappe.cli.process import FleetError, Process
from chappe.core.events import ObjectState
from chappe.publication import Publication
from chappe.publisher import AsyncPublisher

UPLINKS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
"""Of the rate, relay after relay."""
ORIGIN_TIMES = 10
"""The publisher's uplink is so many relays' links."""
JOIN_TIMEOUT_S = 300.0
LEASE = "60s"
SAMPLE_S = 1.0
_KB = 1024


@dataclass(frozen=True, slots=True)
class StripedRun:
    """A broadcast. CPU in seconds, memory in bytes; `relay_` is the mean of one relay, by what their processes took."""

    topology: str
    relays: int
    processes: int
    payload_bytes: int
    rate_bytes_per_s: float
    stripes: int
    streams: int
    """Of all nodes together: one for each relay and stripe."""
    origin_streams: int
    relay_parents: float
    relay_children: float
    relay_children_max: int
    depth: int
    floor_s: float
    joined_s: float
    t_bcast_s: float
    idle_cores: float
    """While broadcasting: 2 less this is what the machine's cores were busy with."""
    relay_threads: float
    relay_descriptors: float
    relay_rss_bytes: float
    relay_cpu_s: float
    origin_threads: int
    origin_descriptors: int
    origin_rss_bytes: int
    origin_cpu_s: float
    coordinator_rss_bytes: int
    coordinator_cpu_s: float
    parents_lost: int
    """As relays said, whatever of."""


@dataclass(frozen=True, slots=True)
class Held:
    """What a process holds now."""

    threads: int
    descriptors: int
    rss_bytes: int

    @classmethod
    def by(cls, pid: int) -> Held:
        status = Path(f"/proc/{pid}/status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        rss_bytes = int(fields["VmRSS"].split()[0]) * _KB
        return cls(int(fields["Threads"]), sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()), rss_bytes)

    def most(self, other: Held) -> Held:
        return Held(
            max(self.threads, other.threads),
            max(self.descriptors, other.descriptors),
            max(self.rss_bytes, other.rss_bytes),
        )


class Watch:
    """Looks at processes until it is cancelled. `grown`: at their most, over what they held at the beginning."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._before = {pid: Held.by(pid) for pid in pids}
        self._most = dict(self._before)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_S)
            for pid, most in self._most.items():
                self._most[pid] = most.most(Held.by(pid))

    def grown(self, *pids: int) -> Held:
        """Of several processes together."""
        pairs = [(self._most[pid], self._before[pid]) for pid in pids]
        return Held(
            sum(most.threads - before.threads for most, before in pairs),
            sum(most.descriptors - before.descriptors for most, before in pairs),
            sum(most.rss_bytes - before.rss_bytes for most, before in pairs),
        )


def shape(chains: Sequence[Sequence[str]], relays: int) -> dict[str, Any]:
    """Who has how many streams. `chains` are those of all stripes."""
    names = [name for chain in chains for name in chain]
    children: dict[str, int] = {}
    for chain in chains:
        for name in chain[:-1]:
            children[name] = children.get(name, 0) + 1
    return {
        "stripes": round(len(names) / relays),
        "streams": len(names),
        "origin_streams": len(chains),
        "relay_parents": len(names) / relays,
        "relay_children": sum(children.values()) / relays,
        "relay_children_max": max(children.values(), default=0),
        "depth": max(len(chain) for chain in chains),
    }


def links_of(rate_bytes_per_s: float) -> tuple[str, str]:
    """As `bench.relayhost` takes them: uplinks, dealt out in turn, and the downlink of all."""
    return ",".join(f"{share * rate_bytes_per_s:.0f}B" for share in UPLINKS), f"{rate_bytes_per_s:.0f}B"


async def striped_run(
    directory: Path, relays: int, processes: int, payload_bytes: int, rate_bytes_per_s: float, topology: str
) -> StripedRun:
    """Every copy is compared by its relay with the announced root. Raises FleetError when one is missing."""
    fleet = LocalFleet(directory, (), coordinator_flags=("--lease", LEASE))
    hosts: list[Process] = []
    async with fleet:
        try:
            began_s = time.perf_counter()
            each = -(-relays // processes)
            for number, first in enumerate(range(0, relays, each)):
                arguments = (fleet.address, str(directory), str(first), str(min(each, relays - first)))
                log = directory / "logs" / f"host-{number}.log"
                links = links_of(rate_bytes_per_s)
                hosts.append(await Process.start(f"host-{number}", "bench.relayhost", (*arguments, *links), log))
            for process in hosts:
                await process.logged(lambda line: line["event"] == "relays_ready", JOIN_TIMEOUT_S)
            await fleet.wait_joined(*(f"r{number}" for number in range(relays)))
            joined_s = time.perf_counter() - began_s
            snapshot = directory / "model.safetensors"
            make_sparse_snapshot(snapshot, payload_bytes)
            uplink = f"{ORIGIN_TIMES * rate_bytes_per_s:.0f}B"
            async with AsyncPublisher(fleet.address, uplink=uplink, limit_uplink=uplink, base_cache=False) as publisher:
                publication = await publisher.publish(snapshot, version=1, payload="full", topology=topology)
                found = await _watched(fleet, publication, hosts, relays)
            lost = (directory / "logs" / "coordinator.log").read_text().count('"event": "parent_lost"')
            return StripedRun(
                topology,
                relays,
                len(hosts),
                payload_bytes,
                rate_bytes_per_s,
                joined_s=joined_s,
                parents_lost=lost,
                **found,
            )
        finally:
            await asyncio.gather(*(process.stop() for process in hosts))


async def _watched(
    fleet: LocalFleet, publication: Publication, hosts: Sequence[Process], relays: int
) -> Mapping[str, Any]:
    origin, coordinator = os.getpid(), fleet.coordinator
    pids = [process.pid for process in hosts]
    watch = Watch([origin, coordinator.pid, *pids])
    watching = asyncio.create_task(watch.run())
    taken = [cpu_s(process) for process in (coordinator, *hosts)]
    origin_s, idle_s, began_s = sum(os.times()[:2]), _idle_s(), time.perf_counter()
    try:
        status = await fleet.wait_status(lambda s: bool(s.publications) and bool(s.publications[0].chains))
        chains = [list(chain.names) for chain in status.publications[0].chains]
        result = await publication.wait(1.0, timeout_s=JOIN_TIMEOUT_S)
    finally:
        watching.cancel()
    idle_cores = (_idle_s() - idle_s) / (time.perf_counter() - began_s)
    coordinator_s, *hosts_s = (
        cpu_s(process) - before for process, before in zip((coordinator, *hosts), taken, strict=True)
    )
    if result.t_bcast["1.0"] is None or result.installed != relays:
        raise FleetError(f"{result.installed} of {relays} relays {ObjectState.INSTALLED.value} the version")
    of_relays, of_origin, of_coordinator = watch.grown(*pids), watch.grown(origin), watch.grown(coordinator.pid)
    return {
        **shape(chains, relays),
        "floor_s": result.floor_s,
        "t_bcast_s": result.t_bcast["1.0"],
        "idle_cores": idle_cores,
        "relay_threads": of_relays.threads / relays,
        "relay_descriptors": of_relays.descriptors / relays,
        "relay_rss_bytes": of_relays.rss_bytes / relays,
        "relay_cpu_s": sum(hosts_s) / relays,
        "origin_threads": of_origin.threads,
        "origin_descriptors": of_origin.descriptors,
        "origin_rss_bytes": of_origin.rss_bytes,
        "origin_cpu_s": sum(os.times()[:2]) - origin_s,
        "coordinator_rss_bytes": of_coordinator.rss_bytes,
        "coordinator_cpu_s": coordinator_s,
    }


def show_striped(runs: Sequence[StripedRun]) -> None:
    table = Table("what", *(run.topology for run in runs), title="What K stripes cost real relays")
    for key in asdict(runs[0]):
        table.add_row(key.replace("_", " "), *(_shown(key, asdict(run)[key]) for run in runs))
    Console(highlight=False, width=140).print(table)


def draw_striped(runs: Sequence[Mapping[str, Any]]) -> Any:
    """What a relay takes, in stripes and in plain chains. Returns a matplotlib Figure."""
    from matplotlib.figure import Figure

    panels = {"relay_threads": 1.0, "relay_descriptors": 1.0, "relay_rss_bytes": 1e6, "relay_cpu_s": 1.0}
    names = dict(zip(panels, ("threads", "descriptors", "MB", "CPU s"), strict=True))
    figure = Figure(figsize=(9, 3), layout="constrained")
    for panel, (key, unit) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        bars = panel.bar([run["topology"] for run in runs], [run[key] / unit for run in runs])
        panel.bar_label(bars, fmt="%.3g", fontsize=8)
        panel.set_title(f"{names[key]} a relay", fontsize=9)
        panel.margins(y=0.15)
    return figure


def _shown(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{value / 1e6:.2f} MB" if name.endswith("_bytes") else f"{value:.2f}".removesuffix(".00")


def _idle_s() -> float:
    """Of all cores together, since the machine started."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()
    return int(fields[4]) / float(os.sysconf("SC_CLK_TCK"))
