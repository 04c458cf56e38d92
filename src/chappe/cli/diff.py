"""`chappe diff A B`: what a delta from one snapshot to another would be, and how long it would take to the fleet."""

from __future__ import annotations

import json as jsonlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from chappe.cli.diffplot import need_matplotlib, plot_density
from chappe.cli.settings import Flat, Rate, Settings
from chappe.core.digest import XXH3_128
from chappe.errors import SnapshotChangedError, UsageError
from chappe.hop.malloc import raise_thresholds
from chappe.hop.ordered import OrderedMap
from chappe.origin.scan import Snapshot, scan
from chappe.payload.delta import ReadRange
from chappe.payload.plan import DeltaPlan
from chappe.payload.survey import BlockSurvey, RegionSurvey, Survey, collect, survey_block
from chappe.payload.table import SnapshotTable
from chappe.planning.topology import broadcast_floor
from chappe.units import format_duration, format_rate, format_size


class Links(Settings):
    """The fleet that the delta would go to. Only the estimate of T_bcast depends on it."""

    workers: int = 9
    """Rollout hosts."""
    uplink: Rate = 300e6 / 8
    """The trainer's uplink (300mbit, 40MB)."""
    worker_downlink: Rate = 100e6 / 8
    """Each worker's downlink."""
    worker_uplink: Rate | None = None
    """Each worker's uplink; as its downlink unless given."""


def diff(
    base: Annotated[Path, Parameter(show_env_var=False)],
    target: Annotated[Path, Parameter(show_env_var=False)],
    /,
    *,
    links: Annotated[Links, Flat] = Links(),  # noqa: B008  frozen
    top: int = 12,
    plot: Path | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Compare two snapshots, and say what a delta from the first to the second would cost.

    Parameters
    ----------
    base
        The snapshot that the workers have: a safetensors file or a Hugging Face directory.
    target
        The one to publish.
    top
        How many tensors to list, those with most changed elements first.
    plot
        Write a picture of the density by layer to this file (png, svg or pdf; needs matplotlib).
    json
        Print one JSON object.
    """
    if links.workers < 1:
        raise UsageError("--workers: at least one")
    if plot is not None and plot.suffix not in (".png", ".svg", ".pdf"):
        raise UsageError(f"--plot: {plot} does not end in .png, .svg or .pdf")
    if plot is not None and not plot.parent.is_dir():  # comparing may take minutes
        raise UsageError(f"--plot: {plot} cannot be written: there is no folder {plot.parent}")
    if plot is not None:
        need_matplotlib()
    raise_thresholds()
    survey = survey_snapshots(scan(base), scan(target))
    if json:
        print(jsonlib.dumps(survey_json(survey, links), indent=2))
    else:
        print_survey(survey, links, top)
    if plot is not None:
        try:
            plot_density(survey, plot)
        except OSError as error:
            raise UsageError(f"--plot: {plot} cannot be written: {error.strerror}") from error
    return 0


@contextmanager
def reader(snapshot: Snapshot) -> Iterator[ReadRange]:
    """Read ranges of a snapshot's files from any thread, with pread. Raises SnapshotChangedError for a short read."""
    with ExitStack() as stack:
        descriptors = []
        for file in snapshot.files:
            descriptor = file.open()
            stack.callback(os.close, descriptor)
            descriptors.append(descriptor)

        def read(file: int, offset: int, length: int) -> bytes:
            data = os.pread(descriptors[file], length, offset)
            if len(data) != length:
                raise SnapshotChangedError(f"{snapshot.files[file].location} changed while it was read")
            return data

        yield read


def survey_snapshots(base: Snapshot, target: Snapshot) -> Survey:
    plan = DeltaPlan.between(
        SnapshotTable.build(base.entries, base.tensors), SnapshotTable.build(target.entries, target.tensors)
    )
    threads = os.cpu_count() or 1
    with reader(base) as read_base, reader(target) as read_target, ThreadPoolExecutor(threads) as pool:

        def one(ordinal: int) -> BlockSurvey:
            return survey_block(plan, XXH3_128, ordinal, read_base, read_target)

        survey = collect(plan, OrderedMap(pool, 2 * threads)(one, range(plan.blocks_total)))
    base.unchanged()
    target.unchanged()
    return survey


def estimate_s(payload_bytes: int, links: Links) -> float:
    """The floor of T_bcast for this many bytes (see `broadcast_floor`), hashing and installing not included."""
    uplink = links.worker_downlink if links.worker_uplink is None else links.worker_uplink
    return broadcast_floor(
        payload_bytes, links.uplink, [uplink] * links.workers, [links.worker_downlink] * links.workers
    )


def payloads(survey: Survey) -> dict[str, int]:
    """Bytes by codec. All but the first two are for comparison."""
    return {
        "delta": survey.delta_bytes,
        "full_compressed": survey.full_compressed_bytes,
        "full": survey.snapshot_bytes,
        "gap_value": survey.gap_value_bytes,
        "index_value": survey.index_value_bytes,
    }


def survey_json(survey: Survey, links: Links) -> dict[str, Any]:
    return {
        "snapshot_bytes": survey.snapshot_bytes,
        "elements": survey.elements,
        "changed": survey.changed,
        "density": survey.density,
        "bytes": payloads(survey),
        "delta_bytes_by_mode": survey.delta_bytes_by_mode,
        "t_bcast_floor_s": {name: estimate_s(size, links) for name, size in payloads(survey).items()},
        "tensors": [
            {
                "name": r.name,
                "dtype": r.dtype or None,
                "elements": r.elements,
                "changed": r.changed,
                "new": not r.compared,
            }
            for r in survey.regions
        ],
    }


_LABELS = {
    "delta": "delta",
    "full_compressed": "full, compressed (estimated from a sample)",
    "full": "full",
    "gap_value": "u16 gap + value, for comparison",
    "index_value": "int32 index + value, for comparison",
}


def print_survey(survey: Survey, links: Links, top: int) -> None:
    console = Console(highlight=False)
    console.print(_headline(survey))
    table = Table("codec", "bytes", "of full", "T_bcast floor", box=None, pad_edge=False)
    for name, size in payloads(survey).items():
        share = size / survey.snapshot_bytes if survey.snapshot_bytes else 0.0
        table.add_row(_LABELS[name], format_size(size), f"{share:.2%}", format_duration(estimate_s(size, links)))
    console.print(table)
    console.print(
        f"to {links.workers} workers at {format_rate(links.worker_downlink)}, trainer {format_rate(links.uplink)}"
    )
    by_mode = ", ".join(f"{mode} {format_size(size)}" for mode, size in survey.delta_bytes_by_mode.items())
    console.print(f"delta by block mode: {by_mode}")
    console.print(_tensors(survey.regions, top))
    if len(survey.regions) > max(0, top):
        console.print(f"and {len(survey.regions) - max(0, top)} more: --top N lists more of them, --json all")


def _headline(survey: Survey) -> str:
    new = sum(1 for r in survey.regions if r.dtype and not r.compared)
    if not survey.elements:
        return "no tensor of the first snapshot is in the second, by name, type and shape: nothing to compare"
    changed = f"{survey.changed:,} of {survey.elements:,} elements changed: {survey.density:.4%}"
    if new:
        return f"{changed}; {new} tensors are new"
    return changed + (f", {survey.delta_bytes / survey.changed:.2f} bytes each" if survey.changed else "")


def _tensors(regions: Sequence[RegionSurvey], top: int) -> Table:
    table = Table("tensor", "type", "elements", "changed", "density", box=None, pad_edge=False)
    for r in sorted(regions, key=lambda r: (-r.changed, r.name))[: max(0, top)]:
        density = f"{r.density:.3%}" if r.compared else "new"
        table.add_row(r.name, r.dtype or "bytes", f"{r.elements:,}", f"{r.changed:,}", density)
    return table
