"""`make demo-delta`: ten training steps, ten versions, each to every relay on this machine, every copy checked.

    MiniLM, fp32 masters ──Adam step──▶ bf16 cast as files ──Publisher──▶ relays ──SHA-256 of every file──▶ identical?

Version 1 goes in full, compressed where that is sooner, the others as deltas to what the relays hold. Without torch the
steps are Adam's, with drawn gradients instead of trained ones, and that is said. The daemons are the real programs as
processes, their links made slower by --limit-* flags; the publisher is the `AsyncPublisher` that a trainer has.
Exit code 0 only if every copy of every version is bit-identical to the publisher's files.
"""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt
import safetensors.numpy
from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from bench.texts import project_texts
from bench.updates import to_bf16
from chappe.cli.demo import TABLE_WIDTH, DemoSettings, choose_model, compare, say, sha256
from chappe.cli.demomodel import WEIGHTS
from chappe.cli.interrupt import run_interruptible
from chappe.cli.localfleet import LocalFleet, relay_specs
from chappe.cli.settings import EXIT_FAILED, Flat, Rate, Settings, make_app, run_app
from chappe.errors import UsageError
from chappe.hop.malloc import raise_thresholds
from chappe.origin.scan import scan
from chappe.publication import PublicationStatus
from chappe.publisher import AsyncPublisher
from chappe.units import format_duration, format_rate, format_size

HELP = (
    "Train a model for some steps and publish each as a version to relays on this machine: deltas, every copy checked."
)
WAIT_S = 300.0
BETAS, EPSILON = (0.9, 0.999), 1e-8

Bf16: TypeAlias = npt.NDArray[np.uint16]
Tensors: TypeAlias = dict[str, npt.NDArray[Any]]


class DemoDeltaSettings(Settings):
    """How many steps, how large they are, and over which links."""

    steps: int = 10
    """Training steps, each published as a version."""
    learning_rate: float = 1e-6
    """Of AdamW. What RL uses: about 1 % of the elements change in a step."""
    relays: int = 4
    """How many relays."""
    rate: Rate = 10e6
    """What each relay may receive and send, per second. The origin may send three times as much."""
    generated: Annotated[bool, Parameter(negative="")] = False
    """A generated model and drawn gradients: needs neither a package index nor torch."""
    cache: Path = Path(".cache")
    """Where the packaged model is kept between runs."""


DEFAULTS = DemoDeltaSettings()
ORIGIN_FACTOR = 3


@dataclass(frozen=True, slots=True)
class Version:
    """What one publication came to, and the relays whose copy differs."""

    result: PublicationStatus
    step_s: float
    different: tuple[str, ...]

    @property
    def density(self) -> float | None:
        """Share of the tensors' elements that changed; None where nothing was compared."""
        compared = sum(p.compared_elements for p in self.result.message.payloads)
        return sum(p.changed_elements for p in self.result.message.payloads) / compared if compared else None


app = make_app("demo-delta", HELP, example="make demo-delta DEMO_ARGS='--steps 20 --learning-rate 1e-5'")


@app.default
def demo_delta(*, settings: Annotated[DemoDeltaSettings, Flat] = DEFAULTS) -> int:
    """Train a model for some steps and publish each as a version to relays on this machine."""
    for name, value in (("--steps", settings.steps), ("--relays", settings.relays)):
        if value < 1:
            raise UsageError(f"{name} {value}: at least one")
    if not 0 < settings.learning_rate < 1:
        raise UsageError(f"--learning-rate {settings.learning_rate:g}: above 0 and below 1")
    raise_thresholds()
    return run_interruptible(run(settings))


async def run(settings: DemoDeltaSettings) -> int:
    with TemporaryDirectory(prefix="chappe-demo-delta-") as scratch:
        model = await choose_model(DemoSettings(cache=settings.cache, generated=settings.generated), Path(scratch))
        steps = training(model, settings)
        versions = await broadcast(steps, sidecars(model), Path(scratch), settings)
    console = Console()
    (console if console.is_terminal else Console(width=TABLE_WIDTH)).print(table(versions))
    return report(versions, settings.relays)


# ---- training --------------------------------------------------------------------------------------------------------


def training(model: Path, settings: DemoDeltaSettings) -> Iterator[Tensors]:
    """The model's tensors after each step: bf16 casts of fp32 masters, and as they are those that are not floating."""
    weights = safetensors.numpy.load_file(model / WEIGHTS)
    floating = {name: t for name, t in weights.items() if np.issubdtype(t.dtype, np.floating)}
    others: Tensors = {name: t for name, t in weights.items() if name not in floating}
    casts: Iterator[Mapping[str, Bf16]]
    if settings.generated:
        say("a generated model: each step is Adam's, its gradients are drawn")
        casts = drawn_steps(floating, settings.learning_rate)
    elif importlib.util.find_spec("torch") is None:
        say(
            "torch is not installed: each step is Adam's, but its gradients are drawn, not trained "
            "(for real training: .venv/bin/python -m pip install -c constraints.txt torch)"
        )
        casts = drawn_steps(floating, settings.learning_rate)
    else:
        from bench.minilm import train

        say("training MiniLM with torch: contrastive loss on this project's texts, AdamW on fp32 masters")
        casts = train(model, project_texts(), settings.learning_rate, warmup=1)
    for cast in casts:
        yield {name: t.view(ml_dtypes.bfloat16) for name, t in cast.items()} | others


def drawn_steps(weights: Mapping[str, npt.NDArray[np.floating]], learning_rate: float) -> Iterator[Mapping[str, Bf16]]:
    """Adam (Kingma and Ba 2015, algorithm 1) on fp32 masters, with normal gradients of a fixed seed."""
    random = np.random.default_rng(1794)
    masters = {name: t.astype(np.float32) for name, t in weights.items()}
    first, second = ({name: np.zeros_like(t) for name, t in masters.items()} for _ in range(2))
    for step in range(1, sys.maxsize):
        for name, master in masters.items():
            gradient = random.standard_normal(master.shape, np.float32)
            first[name] += (1 - BETAS[0]) * (gradient - first[name])
            second[name] += (1 - BETAS[1]) * (gradient * gradient - second[name])
            mean, variance = first[name] / (1 - BETAS[0] ** step), second[name] / (1 - BETAS[1] ** step)
            master -= np.float32(learning_rate) * mean / (np.sqrt(variance) + np.float32(EPSILON))
        yield {name: to_bf16(master) for name, master in masters.items()}


def sidecars(model: Path) -> dict[str, bytes]:
    """Everything of a model but its weights."""
    found = {str(path.relative_to(model)): path for path in model.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if path.name != WEIGHTS}


def write_snapshot(folder: Path, tensors: Tensors, files: Mapping[str, bytes]) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    folder.mkdir(exist_ok=True)
    safetensors.numpy.save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    return folder


# ---- publishing ------------------------------------------------------------------------------------------------------


async def broadcast(
    steps: Iterator[Tensors], files: Mapping[str, bytes], scratch: Path, settings: DemoDeltaSettings
) -> list[Version]:
    rate = f"{settings.rate:.0f}B"
    flags = ["--downlink", rate, "--uplink", rate, "--limit-downlink", rate, "--limit-uplink", rate]
    versions: list[Version] = []
    async with AsyncExitStack() as stack:
        fleet = LocalFleet(scratch / "fleet", relay_specs(settings.relays, flags))
        await stack.enter_async_context(fleet)
        origin_rate = ORIGIN_FACTOR * settings.rate
        say(f"{settings.relays} relays at {format_rate(settings.rate)}, the publisher at {format_rate(origin_rate)}")
        publisher = await stack.enter_async_context(
            AsyncPublisher(fleet.address, uplink=origin_rate, limit_uplink=origin_rate)
        )
        for number in range(1, settings.steps + 1):
            started = time.monotonic()
            tensors = await asyncio.to_thread(next, steps)
            step_s = time.monotonic() - started
            source = await asyncio.to_thread(write_snapshot, scratch / f"v{number}", tensors, files)
            versions.append(await publish(publisher, fleet, source, number, step_s))
            say(line(versions[-1]))
            await asyncio.to_thread(shutil.rmtree, source)
    return versions


async def publish(publisher: AsyncPublisher, fleet: LocalFleet, source: Path, number: int, step_s: float) -> Version:
    """One version to all relays, and a look at every copy of it."""
    result = await (await publisher.publish(source, number)).wait(timeout_s=WAIT_S)
    names = [spec.name for spec in fleet.relays]
    expected = await asyncio.to_thread(lambda: {f.path: sha256(f.location) for f in scan(source).files})
    different = await asyncio.to_thread(compare, [fleet.store(name) / "current" for name in names], expected)
    return Version(result, step_s, tuple(name for name, bad in zip(names, different, strict=True) if bad))


# ---- what is said ----------------------------------------------------------------------------------------------------


def line(version: Version) -> str:
    result = version.result
    said = (
        f"version {result.version}: trained in {format_duration(version.step_s)}, {result.kind}, "
        f"{format_size(result.payload_bytes)}, installed everywhere after {format_duration(result.t_bcast['1.0'])}"
    )
    reason = result.message.payload_reason
    return f"{said} ({reason})" if result.kind != "delta" and reason else said


def table(versions: list[Version]) -> Table:
    columns = ("version", "sent as", "changed elements", "bytes sent", "of full", "T(installed)", "copies identical")
    shown = Table(*columns, title="Each version to every relay")
    for column in shown.columns[2:]:
        column.justify = "right"
    for version in versions:
        result, density = version.result, version.density
        shown.add_row(
            str(result.version),
            result.kind,
            "-" if density is None else f"{density:.2%}",
            format_size(result.payload_bytes),
            f"{result.payload_bytes / result.snapshot_bytes:.2%}",
            format_duration(result.t_bcast["1.0"]),
            f"{result.targeted - len(version.different)} of {result.targeted}",
        )
    return shown


def report(versions: list[Version], relays: int) -> int:
    """Say how it went; the exit code."""
    for version in versions:
        for name in version.different:
            print(f"version {version.result.version}: the copy of {name} DIFFERS from the publisher's files")
    if any(version.different for version in versions):
        return EXIT_FAILED
    copies = len(versions) * relays
    print(f"All {copies} copies are bit-identical to the publisher's files (SHA-256 of every file, of every version).")
    deltas = [version.result for version in versions if version.result.kind == "delta"]
    full = sum(result.snapshot_bytes for result in deltas)
    if deltas:
        sent = sum(result.payload_bytes for result in deltas)
        mean_s = sum(result.t_bcast["1.0"] or 0.0 for result in deltas) / len(deltas)
        print(
            f"{len(deltas)} deltas: {format_size(sent)} to each relay instead of {format_size(full)} "
            f"({sent / full:.2%}), installed everywhere after {format_duration(mean_s)} on average."
        )
    return 0


if __name__ == "__main__":
    sys.exit(run_app(app, env_prefix="CHAPPE_DEMO_"))
