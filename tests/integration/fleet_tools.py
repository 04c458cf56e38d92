"""What the integration tests share: snapshots with known bytes, a fleet of real daemons, and their metrics."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from safetensors.numpy import save_file

from chappe.cli.localfleet import LocalFleet, RelaySpec
from chappe.cli.process import Process
from chappe.cli.settings import TlsSettings
from chappe.core.manifest import CHUNK_BYTES_PLAIN
from chappe.hop.source import Signal
from chappe.origin.scan import Snapshot
from chappe.origin.source import OriginObject
from chappe.publication import PublicationStatus

HTTP = ("--http", "127.0.0.1:0")
POLL_S = 0.02
"""Metrics are scraped: there is no event to wait for. Each look costs both sides some milliseconds."""


def make_snapshot(directory: Path, size_bytes: int, seed: int) -> Path:
    """A Hugging Face directory with one safetensors file of about this size and two sidecars."""
    directory.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    half = size_bytes // 2
    tensors = {
        "model.embed.weight": rng.integers(0, 1 << 16, half // 2, dtype=np.uint16),
        "model.layers.0.weight": rng.integers(0, 1 << 32, half // 4, dtype=np.uint32),
    }
    save_file(tensors, directory / "model.safetensors", metadata={"format": "np"})
    (directory / "config.json").write_text(json.dumps({"hidden_size": 64, "seed": seed}))
    (directory / "tokenizer").mkdir()
    (directory / "tokenizer" / "vocab.txt").write_text("a\nb\n")
    return directory


def digests(directory: Path) -> dict[str, str]:
    """SHA-256 of every file below a directory, by relative path."""
    return {
        path.relative_to(directory).as_posix(): _sha256(path) for path in sorted(directory.rglob("*")) if path.is_file()
    }


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def assert_same_bytes(fleet: LocalFleet, source: Path, *names: str, version: int | None = None) -> None:
    """Every named relay's `current` (or a version of it) is the source, byte for byte, and nothing else."""
    expected = digests(source)
    assert expected
    for name in names:
        landed = fleet.store(name) / ("current" if version is None else f"snapshots/{version}")
        assert digests(landed.resolve()) == expected, f"{name}: {landed}"


def relays(count: int, *flags: str) -> tuple[RelaySpec, ...]:
    """`w1` to `wN`, with metrics: importing an HTTP server is a fifth of a start, leave it to those who look."""
    return mute_relays(count, *HTTP, *flags)


def mute_relays(count: int, *flags: str) -> tuple[RelaySpec, ...]:
    return tuple(RelaySpec(f"w{i}", flags) for i in range(1, count + 1))


async def metrics(process: Process) -> dict[str, float]:
    """The samples of a daemon by name and labels, `name{label="value"}`; empty when it cannot be asked now."""
    async with aiohttp.ClientSession() as session:
        return _samples(await _exposition(process, session))


async def _exposition(process: Process, session: aiohttp.ClientSession) -> str:
    try:
        async with session.get(f"{process.ready['http']}/metrics") as reply:
            return await reply.text()
    except aiohttp.ClientConnectionError:
        return ""


def _samples(text: str) -> dict[str, float]:
    return {
        sample.name
        + (
            "{" + ",".join(f'{k}="{v}"' for k, v in sorted(sample.labels.items())) + "}" if sample.labels else ""
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def metric_reaches(process: Process, name: str, least: float, timeout_s: float = 60.0) -> float:
    """Wait until a metric of a daemon is at least so much, and return it."""
    family = re.compile(rf"{re.escape(name.partition('{')[0])}[ {{]")
    async with asyncio.timeout(timeout_s), aiohttp.ClientSession() as session:
        while True:
            lines = (await _exposition(process, session)).splitlines(keepends=True)
            value = _samples("".join(filter(family.match, lines))).get(name, 0.0)
            if value >= least:
                return value
            await asyncio.sleep(POLL_S)


def memory_bytes(process: Process, field: str = "RssAnon") -> int:
    """A field of /proc/PID/status in bytes: RssAnon is what a daemon holds itself, VmHWM its highest RSS ever."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) << 10
    raise AssertionError(f"no {field} for {process.name}")


async def run_cli(*arguments: str, environment: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Run `chappe ARGUMENTS` and return exit code, stdout, stderr."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "chappe.cli.main", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **(environment or {})},
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


def tls_flags(tls: TlsSettings) -> tuple[str, ...]:
    files = {"--tls-cert": tls.tls_cert, "--tls-key": tls.tls_key, "--tls-ca": tls.tls_ca}
    return tuple(text for flag, path in files.items() if path is not None for text in (flag, str(path)))


async def chappe(fleet: LocalFleet, *arguments: str) -> tuple[int, str, str]:
    """`run_cli` against this fleet."""
    return await run_cli(*arguments, "--coordinator", fleet.address, *tls_flags(fleet.tls))


async def published(fleet: LocalFleet, source: Path, *arguments: str) -> dict[str, Any]:
    """What `chappe publish SOURCE --json` prints, once it has succeeded."""
    code, out, err = await chappe(fleet, "publish", str(source), "--json", *arguments)
    assert code == 0, err
    result: dict[str, Any] = json.loads(out)  # one object, and nothing else
    return result


async def start_publish(fleet: LocalFleet, source: Path, *arguments: str, module: str = "chappe.cli.main") -> Process:
    """`chappe publish SOURCE` as a process that can be interrupted, stopped or killed."""
    arguments = ("publish", str(source), *arguments, "--coordinator", fleet.address, *tls_flags(fleet.tls))
    log_path = fleet.directory / "logs" / "publish.log"
    return await Process.start("publish", module, arguments, log_path, capture_stdout=True)


def payload_bytes(source: Path) -> int:
    return sum(path.stat().st_size for path in source.rglob("*") if path.is_file())


class Gate:
    """Holds an origin at so many chunks until it is opened."""

    def __init__(self) -> None:
        self.chunks = 0
        self._opened = Signal()

    async def wait(self, chunks: int) -> None:
        if chunks > self.chunks:
            await self._opened.wait(0)

    def open(self) -> None:
        self._opened.fire()


class HeldOrigins:
    """Publications of this process stop at a share of their payload, root not announced, until their gate is opened.

    Chunks and pages are small meanwhile, whatever the links, so that a share of a few MB is a share. `gates` are in the
    order of the publications.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, share: float) -> None:
        self.share = share
        self.gates = [Gate() for _ in range(8)]
        self._next = iter(self.gates)
        monkeypatch.setattr("chappe.origin.source.chunks_per_page_for", lambda _chunk_bytes: 4)
        monkeypatch.setattr("chappe.origin.job.OriginObject", self._make)

    def _make(self, snapshot: Snapshot, object_id: str, _chunk_bytes: int, *rest: Any, **options: Any) -> OriginObject:
        gate = next(self._next)
        gate.chunks = int(self.share * snapshot.snapshot_bytes / CHUNK_BYTES_PLAIN)
        return OriginObject(snapshot, object_id, CHUNK_BYTES_PLAIN, *rest, gate=gate, **options)


def installed(status: PublicationStatus) -> float:
    return status.installed_fraction
