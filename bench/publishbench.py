"""`python -m bench publish`: how long a publication takes before and after the bytes travel.

    publish() ──▶ first chunk on the wire ─ ─ ─ ─▶ last chunk at the relay ──▶ installed
     └─ start: a path of any size (sparse), tensors ─┘  └─ end: beside the disk's own ──┘

Real daemons on loopback and the real publisher. A start is over when the origin has sent more than header and first
page together can be. An end (`bench.landings`) lies between the moment when the last chunk was stored and the relay's
line that the version has landed. What the disk must do in between is measured right afterwards, by a plain program
(`bench.diskalone`): a copy of the same bytes, written at the rate at which they came, made durable. Each end says how
many bytes the relay read: a second pass over the files would show.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from bench import landings, scratch
from bench.fleet import make_snapshot
from bench.hop import make_sparse_snapshot
from bench.publishshow import End, Start, show, summary
from bench.results import RESULTS, write_results
from chappe.cli.localfleet import LocalFleet, relay_specs
from chappe.cli.settings import Flat, Rate, Settings, Size
from chappe.errors import ChappeError, UsageError
from chappe.publisher import AsyncPublisher
from chappe.units import format_size

SETUP_BYTES = 64 << 10
"""Header and first page of these snapshots are smaller, any chunk is not."""
START_TIMEOUT_S = 120.0
TENSORS = 16
_LOOK_S = 0.001


class PublishSettings(Settings):
    paths: tuple[Size, ...] = (100_000_000, 1_000_000_000, 16_000_000_000)
    """Sizes of sparse files to start publishing, one --paths for each."""
    tensors: tuple[Size, ...] = (4_000_000_000,)
    """Sizes of state dicts to start publishing, by numpy and by torch, one --tensors for each."""
    landings: tuple[Size, ...] = (1_000_000_000,)
    """Sizes to receive and install, one --landings for each."""
    limits: tuple[Rate, ...] = (50e6, 1.25e9)
    """How fast the landings arrive at most, one --limits for each."""
    repeats: Annotated[int, Field(ge=1)] = 5
    """Runs of each."""
    directory: Path = Path(tempfile.gettempdir())
    """Where snapshots and stores lie: on the disk that landing is to be measured on."""
    short: bool = False
    """Smaller, and two runs of each: what `make bench` runs."""
    output: Path = RESULTS / "publish.json"
    """The JSON to write."""


_DEFAULTS = PublishSettings()
_SHORT: dict[str, Any] = {
    "paths": (100_000_000, 16_000_000_000),
    "tensors": (256_000_000,),
    "landings": (256_000_000,),
    "limits": (50e6, 1.25e9),
    "repeats": 2,
}


def publish(*, settings: Annotated[PublishSettings, Flat] = _DEFAULTS) -> int:
    """From publish() to the first chunk on the wire, and from the last chunk to the installed version."""
    if settings.short:
        settings = settings.model_copy(update=_SHORT)
    if min(*settings.paths, *settings.tensors, *settings.landings) < 1 << 20:
        raise UsageError("--paths, --tensors and --landings must be at least 1MiB")
    starts, ends = asyncio.run(_measure(settings))
    show(starts, ends)
    parameters = settings.model_dump(mode="json", exclude={"output"})
    runs = [{"what": "start", **asdict(s)} for s in starts]
    runs += [{"what": "end", **asdict(e), "ratio": e.ratio, "named_ratio": e.named_ratio} for e in ends]
    write_results(settings.output, "publish", parameters, runs, **summary(starts, ends))
    return 0


async def _measure(settings: PublishSettings) -> tuple[list[Start], list[End]]:
    with tempfile.TemporaryDirectory(prefix=scratch.prefix("publish"), dir=settings.directory) as base:
        directory = Path(base)
        snapshot = directory / "model.safetensors"
        starts: list[Start] = []
        async with LocalFleet(directory / "starts", relay_specs(1, ("--downlink", "10gbit"))) as fleet:
            for size in settings.paths:
                make_sparse_snapshot(snapshot, size)
                starts += [await _start(fleet, "path", snapshot, size, repeat) for repeat in range(settings.repeats)]
            for size in settings.tensors:
                for kind in _kinds():
                    state = _state_dict(kind, size)
                    starts += [await _start(fleet, kind, state, size, repeat) for repeat in range(settings.repeats)]
                    del state
        ends: list[End] = []
        for size in settings.landings:
            shutil.rmtree(directory / "model", ignore_errors=True)
            snapshot = make_snapshot(directory / "model", size) / "model.safetensors"
            for limit in settings.limits:
                ends += await landings.land(directory, snapshot, size, limit, settings.repeats)
        return starts, ends


def _kinds() -> tuple[str, ...]:
    """Of state dicts."""
    if find_spec("torch"):
        return ("numpy", "torch")
    print("torch's tensors: left out, torch is not installed (pip install '.[torch]')", file=sys.stderr)
    return ("numpy",)


def _state_dict(kind: str, size_bytes: int) -> Mapping[str, Any]:
    each = size_bytes // TENSORS // 4
    if kind == "numpy":
        return {f"layer.{i}": np.full(each, i + 1, np.float32) for i in range(TENSORS)}
    import torch

    return {f"layer.{i}": torch.full((each,), float(i + 1)) for i in range(TENSORS)}


async def _start(fleet: LocalFleet, kind: str, source: Path | Mapping[str, Any], size_bytes: int, repeat: int) -> Start:
    """A publication until its first chunk has left; then it is cancelled."""
    async with AsyncPublisher(fleet.address, uplink="10gbit", base_cache=False) as publisher:
        started_s = time.perf_counter()
        publication = await publisher.publish(source, payload="full", chains=1)
        returned_s = time.perf_counter() - started_s
        async with asyncio.timeout(START_TIMEOUT_S):
            while _sent_bytes(publisher) <= SETUP_BYTES:
                if publication.done:
                    raise ChappeError(f"the publication ended before a chunk had left: {await publication.wait(0.0)}")
                await asyncio.sleep(_LOOK_S)
        first_s = time.perf_counter() - started_s
        await publication.cancel()
        start = Start(kind, size_bytes, repeat, returned_s, first_s)
        print(f"{kind} {format_size(size_bytes)}: first chunk after {first_s:.3f} s", file=sys.stderr, flush=True)
        return start


def _sent_bytes(publisher: AsyncPublisher) -> int:
    node = publisher._node  # not for users: they see what arrives
    assert node is not None
    return node._peering.service.streams.forwarded_bytes_total
