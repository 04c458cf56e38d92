"""One broadcast of the fault table: a new fleet, a publication, the fault at half of the bytes, and what it did.

Times are wall-clock seconds, as in the daemons' logs, from which the decisions are read. What a relay has received is
read from its metrics: ten times a second from those that the fault concerns, twice a second from the others.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from bench import scratch
from bench.curves import Curve, complete_s, longest_silence, rate, receiving_again_s
from bench.faultcases import JOINER, Case, Line, Scene, rot_met
from bench.fleet import Scraper, ShapedFleet, Worker, digests
from bench.links import Link
from chappe.cli.process import FleetError, Process

SAMPLE_S = 0.1
SLOW_EVERY = 5
BEFORE_S = 3.0
"""The rate before the fault is taken over so long."""
LINES_KEPT = 80
_DULL = frozenset({"level", "object_id", "root", "store", "state", "http", "tls", "run"})
_EVERY_RUN = frozenset({("fetch_ended", "complete"), ("landed", "installed")})


@dataclass(frozen=True, slots=True)
class Setup:
    """What all runs of a session share. `uplinks` are shares of the link's, worker after worker; none: all of it."""

    snapshot: Path
    payload_bytes: int
    workers: int
    link: Link
    trainer: Link
    timeout_s: float
    topology: str = "chains"
    uplinks: tuple[float, ...] = ()

    def link_of(self, number: int) -> Link:
        """The link of the N-th worker, from 0."""
        up = self.link.up_bytes_per_s
        if not self.uplinks or up is None:
            return self.link
        return replace(self.link, up_bytes_per_s=up * self.uplinks[number % len(self.uplinks)])


@dataclass(slots=True)
class Run:
    """One row. Seconds and bytes; None where there is nothing to say."""

    key: str
    victim: str | None = None
    chains: list[list[str]] = field(default_factory=list)  # of all stripes
    stripes: int = 1
    living: list[str] = field(default_factory=list)
    t_bcast_s: dict[str, float | None] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    fault_after_s: float | None = None  # from the start of `chappe publish`
    receiving_again_s: float | None = None  # the last of the watched
    silence_s: float | None = None  # the longest of the watched, after the fault
    watched: dict[str, dict[str, float | None]] = field(default_factory=dict)
    others_silence_s: float | None = None  # the longest of the living that are not watched
    received_bytes: dict[str, float] = field(default_factory=dict)
    wire_received_bytes: dict[str, int] = field(default_factory=dict)
    t_others_s: float | None = None  # until all but the victim had it
    answer: str | None = None
    answer_s: float | None = None  # after the fault
    identical: bool = False
    error: str | None = None
    log: list[Line] = field(default_factory=list)  # what daemons said after the fault

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Sampler:
    """Curves of received bytes, one per relay, drawn by a task until it is cancelled."""

    def __init__(self, fleet: ShapedFleet, names: Iterable[str]) -> None:
        self.curves: dict[str, list[tuple[float, float]]] = {}
        self.closely: set[str] = set()
        self._fleet = fleet
        self._scrapers: dict[str, Scraper] = {}
        self._passed = asyncio.Event()
        for name in names:
            self.add(name)

    def add(self, name: str) -> None:
        self.curves[name] = []
        self._scrapers[name] = self._fleet.scraper(name)

    def received(self) -> dict[str, float]:
        return {name: curve[-1][1] if curve else 0.0 for name, curve in self.curves.items()}

    async def until_mean(self, size_bytes: float) -> None:
        """Until a relay has so much on average."""
        while statistics.fmean(self.received().values()) < size_bytes:
            self._passed.clear()
            await self._passed.wait()

    async def run(self) -> None:
        count, due_s = 0, time.monotonic()
        while True:
            names = [n for n in self.curves if n in self.closely or count % SLOW_EVERY == 0]
            await asyncio.to_thread(self._sample, names)
            self._passed.set()
            count, due_s = count + 1, max(due_s + SAMPLE_S, time.monotonic())
            await asyncio.sleep(due_s - time.monotonic())

    def _sample(self, names: list[str]) -> None:
        for name in names:
            samples = self._scrapers[name].read()
            if samples is not None and "relayd_received_bytes_total" in samples:
                self.curves[name].append((time.time(), samples["relayd_received_bytes_total"]))

    def close(self) -> None:
        for scraper in self._scrapers.values():
            scraper.close()


async def run_case(case: Case | None, setup: Setup, keep: Path | None = None) -> Run:
    """Broadcast once; without a case nothing happens on the way. `keep` takes the daemons' logs."""
    run = Run(case.key if case else "undisturbed")
    directory = scratch.make("faults")
    count = setup.workers - (1 if case and case.joins else 0)
    workers = [Worker(f"w{i}", setup.link_of(i - 1)) for i in range(1, count + 1)]
    try:
        async with ShapedFleet(directory, setup.trainer, workers) as fleet:
            await _broadcast(run, case, setup, fleet)
    except (FleetError, TimeoutError) as error:
        run.error = str(error) or "did not finish in time"
    finally:
        if keep is not None:
            shutil.copytree(directory / "logs", keep / run.key, dirs_exist_ok=True)
        shutil.rmtree(directory, ignore_errors=True)
    return run


async def _broadcast(run: Run, case: Case | None, setup: Setup, fleet: ShapedFleet) -> None:
    sampler = Sampler(fleet, (worker.name for worker in fleet.workers))
    sampling = asyncio.create_task(sampler.run())
    started_s = time.time()
    try:
        publish = await fleet.start_publish(setup.snapshot, "--topology", setup.topology)
        ended = asyncio.create_task(publish.output())
        async with asyncio.timeout(setup.timeout_s):
            await _unless_ended(publish, ended, sampler.until_mean(0.02 * setup.payload_bytes))
            run.chains = await fleet.planned_chains()
            run.stripes = len([name for chain in run.chains for name in chain]) // len(fleet.workers)
            if case is not None:
                run.victim = case.victim(run.chains)
                sampler.closely.update((run.victim, *case.watched(run.chains, run.victim)))
            else:
                sampler.closely.update(run.chains[0])
            await _unless_ended(publish, ended, sampler.until_mean(0.5 * setup.payload_bytes))
            fault_s = time.time()
            run.fault_after_s = fault_s - started_s
            if case is not None:
                assert run.victim is not None
                if case.joins:
                    sampler.add(JOINER)
                if case.key == "coordinator":
                    sampler.closely.update(sampler.curves)
                link = setup.link if case.joins else fleet.host(run.victim).link
                await case.inject(Scene(fleet, run.chains, run.victim, link, setup.payload_bytes, run.stripes))
            output = await asyncio.shield(ended)
    except TimeoutError:
        run.error = f"did not finish within {setup.timeout_s:.0f} s"
        output = b""
    finally:
        sampling.cancel()
        await asyncio.gather(sampling, return_exceptions=True)
    await asyncio.to_thread(sampler._sample, list(sampler.curves))
    sampler.close()
    silenced = {run.victim} if case is not None and case.dies else set()  # tries and tries, and nobody hears it
    run.log = [line for line in _after(fleet.directory / "logs", fault_s) if line["who"] not in silenced][:LINES_KEPT]
    _outcome(run, publish, output)
    _measure(run, case, sampler, setup, fault_s)
    run.living = [n for n in sampler.curves if fleet.processes[n].returncode is None and n != _gone(case, run)]
    run.received_bytes = {name: size for name, size in sampler.received().items() if name in run.living}
    run.wire_received_bytes = {name: fleet.host(name).counters()[1] for name in run.living}
    _count_others(run, sampler.curves)
    run.identical = await asyncio.to_thread(_identical, fleet, setup.snapshot, run.living)


def _count_others(run: Run, curves: Mapping[str, Curve]) -> None:
    total_s = run.t_bcast_s.get("1.0")
    done = {name: complete_s(curves[name]) for name in run.living if curves[name]}
    rest = [time for name, time in done.items() if name != run.victim]
    if total_s is not None and rest:
        run.t_others_s = total_s - (max(done.values()) - max(rest))


def _gone(case: Case | None, run: Run) -> str | None:
    return run.victim if case is not None and case.dies else None


async def _unless_ended(publish: Process, ended: asyncio.Task[bytes], waiting: Any) -> None:
    """Wait for something that the publication brings. Raises FleetError when it ends before."""
    task = asyncio.create_task(waiting)
    try:
        await asyncio.wait((task, ended), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise FleetError(f"the publication ended too early, code {publish.returncode}:\n{publish.tail()}")
        task.result()
    finally:
        task.cancel()


def _outcome(run: Run, publish: Process, output: bytes) -> None:
    if output:
        result = json.loads(output)
        run.t_bcast_s, run.lost = result["t_bcast"], result["lost"]
    elif run.error is None:
        run.error = f"chappe publish ended with {publish.returncode}: {publish.tail(3).strip()}"


def _measure(run: Run, case: Case | None, sampler: Sampler, setup: Setup, fault_s: float) -> None:
    watched = case.watched(run.chains, run.victim) if case and run.victim else run.chains[0]
    origin_s = fault_s
    if case is not None and case.joins:
        origin_s = _met(run, fault_s)
    steady = [n for n in watched if n != JOINER]
    for name in watched:
        curve = sampler.curves[name]
        if len(curve) < 2:
            continue
        before = rate(curve, origin_s - BEFORE_S, origin_s) if name in steady else setup.link.down_bytes_per_s or 0.0
        at_s, length_s = longest_silence(curve, origin_s)
        run.watched[name] = {
            "rate_before": before,
            "rate_after": rate(curve, origin_s, complete_s(curve)) if complete_s(curve) > origin_s else None,
            "receiving_again_s": receiving_again_s(curve, origin_s, before),
            "silence_s": length_s,
            "silence_after_s": at_s - origin_s,
            "complete_after_s": complete_s(curve) - origin_s,
        }
    again = [w["receiving_again_s"] for w in run.watched.values()]
    run.receiving_again_s = None if None in again or not again else max(a for a in again if a is not None)
    run.silence_s = max((w["silence_s"] or 0.0 for w in run.watched.values()), default=None)
    rest = [n for n in sampler.curves if n not in watched and n != run.victim and len(sampler.curves[n]) > 1]
    run.others_silence_s = max((longest_silence(sampler.curves[n], fault_s)[1] for n in rest), default=None)
    answer = case.answer(run.log) if case is not None else None
    if answer is not None:
        run.answer_s = answer["after_s"]
        run.answer = f"{answer['event']} {answer.get('reason', '')}".strip()


def _met(run: Run, fault_s: float) -> float:
    """When the rotted chunk was met. Without that, the run has measured nothing."""
    met = rot_met(run.log)
    if met is None:
        run.error = run.error or "nobody read the rotted chunk"
        return fault_s
    return fault_s + float(met["after_s"])


def _after(logs: Path, fault_s: float) -> list[Line]:
    """The daemons' decisions after the fault, in the order of their times."""
    lines = [line for path in logs.glob("*.log") for line in _lines(path, fault_s)]
    return sorted(lines, key=lambda line: line["after_s"])


def _lines(path: Path, fault_s: float) -> Iterator[Line]:
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        after_s = datetime.fromisoformat(line.pop("timestamp")).timestamp() - fault_s
        if after_s >= 0 and (line.get("event"), line.get("reason")) not in _EVERY_RUN:
            kept = {key: value for key, value in line.items() if key not in _DULL}
            yield {"after_s": round(after_s, 3), "who": path.stem, **kept}


def _identical(fleet: ShapedFleet, snapshot: Path, names: Iterable[str]) -> bool:
    expected = digests(snapshot)
    wrong = [name for name in names if digests((fleet.store(name) / "current").resolve()) != expected]
    for name in wrong:
        print(f"{name}: what has landed differs from the source", file=sys.stderr)
    return not wrong
