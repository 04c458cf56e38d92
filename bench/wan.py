"""`python -m bench wan`: one hop over a long or lossy link, beside bare TCP on the same link.

    trainer (coordinator, origin) ──100 Mbit/s, RTT, loss──▶ w1 (relayd)

A point is a round trip and a loss. Each has hosts of its own; on them windows of a fixed time are alternated: bare TCP,
Chappe, bare TCP, ... under the same congestion control, the kernel's own. A window begins with the first byte that
arrives, so that slow start is in it on both sides. Chappe's bytes are what the relay counts: verified and stored.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated

from pydantic import Field

from bench import scratch
from bench.fleet import Scraper, ShapedFleet, Worker
from bench.hop import make_sparse_snapshot
from bench.links import Host, Link
from bench.results import RESULTS, write_results
from bench.wanshow import show
from chappe.cli.process import FleetError, Process
from chappe.cli.settings import Duration, Flat, Rate, Settings
from chappe.errors import UsageError
from chappe.units import format_rate

BARE_PORT = 7600
NOWHERE = "192.0.2.1:7401"  # of an address block that is for examples only
FIRST_BYTE_TIMEOUT_S = 60.0
_SPARE = 1.3  # a payload so much larger than a window can carry
_TIGHT_S, _LOOSE_S = 0.05, 0.5  # between two looks at the relay's counter: until the first byte, and after it
_BARE = Path(__file__).with_name("barestream.py")


@dataclass(frozen=True, slots=True)
class Window:
    """One measurement. `curve` is (seconds since the first byte, bytes)."""

    system: str
    rtt_s: float
    loss: float
    repeat: int
    bytes_per_s: float
    curve: list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Point:
    """What all windows of one round trip and loss say together; rates are medians, in bytes per second."""

    rtt_s: float
    loss: float
    repeats: int
    chappe_bytes_per_s: float
    bare_bytes_per_s: float
    ratio: float
    """Median of the ratios of neighbours: a slow minute of the machine is in both."""
    ratio_low: float
    ratio_high: float
    bare_streams: dict[str, float]
    """Medians of several bare streams at once, by their number..."""
    chappe_streams: dict[str, float]
    """...and of Chappe with several for the hop."""


def points_of(windows: Sequence[Window]) -> list[Point]:
    """In the order of round trip and loss. A point without both systems is left out."""
    found: list[Point] = []
    for rtt_s, loss in sorted({(w.rtt_s, w.loss) for w in windows}):
        mine = [w for w in windows if (w.rtt_s, w.loss) == (rtt_s, loss)]
        rates: dict[str, dict[int, float]] = {}
        for window in mine:
            rates.setdefault(window.system, {})[window.repeat] = window.bytes_per_s
        ours, bare = rates.get("chappe", {}), rates.get("bare", {})
        ratios = sorted(ours[repeat] / bare[repeat] for repeat in ours.keys() & bare.keys())
        if not ratios:
            continue
        several = (_several("bare x", rates), _several("chappe x", rates))
        middle = (statistics.median(ours.values()), statistics.median(bare.values()), statistics.median(ratios))
        found.append(Point(rtt_s, loss, len(ratios), *middle, ratios[0], ratios[-1], *several))
    return found


def _several(prefix: str, rates: Mapping[str, Mapping[int, float]]) -> dict[str, float]:
    return {
        name.removeprefix(prefix): statistics.median(values.values())
        for name, values in rates.items()
        if name.startswith(prefix)
    }


def thinned(curve: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Two points a second are enough to draw; the first and the last stay."""
    kept = [curve[0]]
    kept += [point for before, point in pairwise(curve) if int(point[0] / _LOOSE_S) > int(before[0] / _LOOSE_S)]
    if kept[-1] != curve[-1]:
        kept.append(curve[-1])
    return [(round(at_s, 3), size) for at_s, size in kept]


class WanSettings(Settings):
    rtt: tuple[Duration, ...] = (0.0, 0.02, 0.1, 0.2)
    """Round trips, one --rtt for each."""
    loss: tuple[Annotated[float, Field(ge=0, lt=1)], ...] = (0.0, 0.001, 0.01)
    """Shares of frames lost in each direction, one --loss for each."""
    rate: Rate = 12.5e6
    """Of the link, both ways."""
    window: Duration = 20.0
    """How long each measurement takes."""
    repeats: Annotated[int, Field(ge=1)] = 5
    """Windows of each kind at each point."""
    bare_streams: tuple[Annotated[int, Field(ge=2)], ...] = ()
    """Also so many bare streams at once: what more connections for one hop would give."""
    streams: tuple[Annotated[int, Field(ge=2)], ...] = ()
    """Also Chappe with so many --streams for the hop."""
    relayd_flags: tuple[str, ...] = ()
    """More flags for relayd."""
    publish_flags: tuple[str, ...] = ()
    """More flags for chappe publish."""
    pushed: bool = False
    """The publisher advertises an address that nobody can dial: it dials the relay, as it does hosts behind NAT."""
    congestion_control: str | None = None
    """The sender's, for both; by default the kernel's."""
    directory: Path = Path("/dev/shm")
    """Where snapshot and stores lie: in memory, so that it is the link that is measured."""
    short: bool = False
    """Three points, one window of 5 s each: what `make bench` runs."""
    add: bool = False
    """Keep the points that the output has and this run does not measure."""
    output: Path = RESULTS / "wan.json"
    """The JSON to write."""


_DEFAULTS = WanSettings()
_SHORT_POINTS = ((0.0, 0.0), (0.1, 0.0), (0.1, 0.001))


def wan(*, settings: Annotated[WanSettings, Flat] = _DEFAULTS) -> int:
    """One hop over long and lossy links, beside bare TCP on the same link (root, namespaces, tc)."""
    points = list(itertools.product(settings.rtt, settings.loss))
    if settings.short:
        points = list(_SHORT_POINTS)
        settings = settings.model_copy(update={"window": 5.0, "repeats": 1})
    if settings.window < 1 or not points:
        raise UsageError("--window must be 1s or more, and there must be a --rtt and a --loss")
    windows = asyncio.run(_measure(settings, points))
    if settings.add and settings.output.exists():
        kept = [Window(**run) for run in json.loads(settings.output.read_text(encoding="utf-8"))["runs"]]
        windows = [w for w in kept if (w.rtt_s, w.loss) not in set(points)] + windows
    found = points_of(windows)
    show([asdict(point) for point in found], settings.rate)
    parameters = settings.model_dump(mode="json", exclude={"output", "add", "rtt", "loss"})
    runs = [asdict(replace(window, curve=thinned(window.curve))) for window in windows]
    write_results(settings.output, "wan", parameters, runs, points=[asdict(point) for point in found])
    return 0


async def _measure(settings: WanSettings, points: Sequence[tuple[float, float]]) -> list[Window]:
    directory = scratch.make("wan", settings.directory)
    try:
        snapshot = directory / "model.safetensors"
        make_sparse_snapshot(snapshot, round(settings.rate * settings.window * _SPARE) + (8 << 20))
        found: list[Window] = []
        for rtt_s, loss in points:
            found += await _point(settings, rtt_s, loss, snapshot, directory / "fleet")
            shutil.rmtree(directory / "fleet", ignore_errors=True)
        return found
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def _point(settings: WanSettings, rtt_s: float, loss: float, snapshot: Path, directory: Path) -> list[Window]:
    link = Link(settings.rate, settings.rate, delay_s=rtt_s / 2, loss=loss)
    trainer = Link(settings.rate, settings.rate)
    found: list[Window] = []
    async with ShapedFleet(directory, trainer, [Worker("w1", link, settings.relayd_flags)]) as fleet:
        if settings.congestion_control is not None:
            for host in fleet.network.hosts.values():
                _use_congestion_control(host, settings.congestion_control)
        for repeat in range(settings.repeats):
            for streams in (1, *settings.bare_streams):
                curve = await asyncio.to_thread(bare_curve, fleet, streams, settings.window)
                found.append(_window("bare" if streams == 1 else f"bare x{streams}", rtt_s, loss, repeat, curve))
            for number, streams in enumerate((1, *settings.streams)):
                version = repeat * (1 + len(settings.streams)) + number + 1
                curve = await _chappe_curve(fleet, snapshot, version, settings, streams)
                found.append(_window("chappe" if streams == 1 else f"chappe x{streams}", rtt_s, loss, repeat, curve))
            print(_line(found), file=sys.stderr, flush=True)
    return found


def _use_congestion_control(host: Host, name: str) -> None:
    """On its routes: as a namespace's default only what the machine allows everybody is possible."""
    for route in host.run("ip", "route", "show").splitlines():
        host.run("ip", "route", "replace", *route.split(), "congctl", name)


def _window(system: str, rtt_s: float, loss: float, repeat: int, curve: list[tuple[float, float]]) -> Window:
    taken_s, size = curve[-1]
    return Window(system, rtt_s, loss, repeat, size / taken_s, curve)


def _line(windows: Sequence[Window]) -> str:
    last = windows[-1]
    rates = ", ".join(f"{w.system} {format_rate(w.bytes_per_s)}" for w in windows if w.repeat == last.repeat)
    return f"RTT {last.rtt_s * 1e3:g} ms, loss {last.loss * 100:g} %: {rates}"


def bare_curve(fleet: ShapedFleet, streams: int, window_s: float) -> list[tuple[float, float]]:
    """Bytes that bare TCP brings from the trainer to w1. Raises FleetError when nothing arrives."""
    trainer, worker = fleet.host("trainer"), fleet.host("w1")
    place = (worker.address, str(BARE_PORT), str(streams))
    receive = [sys.executable, str(_BARE), "receive", *place, str(window_s)]
    with worker.popen(receive, stdout=subprocess.PIPE) as receiver:
        assert receiver.stdout is not None
        receiver.stdout.readline()
        with trainer.popen([sys.executable, str(_BARE), "send", *place]) as sender:
            text = receiver.stdout.readline()
            if not text:
                sender.kill()
                raise FleetError("the bare receiver ended without a word")
    curve: list[tuple[float, float]] = [(at_s, size) for at_s, size in json.loads(text)]
    return curve


async def _chappe_curve(
    fleet: ShapedFleet, snapshot: Path, version: int, settings: WanSettings, streams: int
) -> list[tuple[float, float]]:
    scraper = fleet.scraper("w1")
    try:
        before = await asyncio.to_thread(_received, scraper)
        flags = () if streams == 1 else ("--streams", str(streams))
        flags += ("--advertise", NOWHERE) if settings.pushed else ()
        publish = await fleet.start_publish(snapshot, "--version", str(version), *flags, *settings.publish_flags)
        curve = await asyncio.to_thread(_watch, scraper, publish, before, settings.window)
        publish.send_signal(signal.SIGINT)  # cancels: the relay lets go of what it has
        await publish.wait()
    finally:
        scraper.close()
    return curve


def _received(scraper: Scraper) -> float:
    samples = scraper.read()
    if samples is None:
        raise FleetError("the relay's metrics do not answer")
    return samples["relayd_received_bytes_total"]


def _watch(scraper: Scraper, publish: Process, before: float, window_s: float) -> list[tuple[float, float]]:
    """The window begins at the last look that saw nothing: never to Chappe's advantage."""
    begun_s = time.monotonic()
    deadline_s = begun_s + FIRST_BYTE_TIMEOUT_S
    while (size := _received(scraper) - before) <= 0:
        begun_s = time.monotonic()
        if publish.returncode is not None or begun_s > deadline_s:
            raise FleetError(f"nothing arrived:\n{publish.tail()}")
        time.sleep(_TIGHT_S)
    curve = [(0.0, 0.0), (time.monotonic() - begun_s, size)]
    while (left_s := begun_s + window_s - time.monotonic()) > 0:
        time.sleep(min(_LOOSE_S, left_s))
        size = _received(scraper) - before
        curve.append((time.monotonic() - begun_s, size))
    if publish.returncode is not None:
        raise FleetError(f"the publication ended inside the window:\n{publish.tail()}")
    return curve
