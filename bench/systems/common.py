"""What every system of a comparison is given and what it hands back: hosts on shaped links, a payload, an outcome.

    trainer ──B0──▶ w1 .. wN        each system starts its programs there, is told to go, and says who has it when

Nothing is waited for by sleeping, with one exception: a listening port tells nobody that it is there.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
from safetensors.numpy import save_file

from bench.fleet import connect_within
from bench.links import Link, Network
from bench.systems.metering import Meter
from bench.systems.programs import START_TIMEOUT_S, Helper, PeerError, program

FRACTIONS = (0.5, 0.9, 1.0)
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Course:
    """Hosts and links: the trainer's uplink B0, and a link for each worker w1 .. wN. Rates in bytes per second."""

    b0: float
    links: tuple[Link, ...]
    mtu: int = 1500

    @classmethod
    def equal(cls, b0: float, bw: float, workers: int, mtu: int = 1500) -> Course:
        return cls(b0, (Link(bw, bw, mtu),) * workers, mtu)

    @property
    def trainer(self) -> Link:
        return Link(up_bytes_per_s=self.b0, mtu=self.mtu)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"w{i}" for i in range(1, len(self.links) + 1))

    @property
    def chains(self) -> int:
        """floor(B0 / Bw) with Bw the largest downlink: how many streams the trainer's uplink feeds at full rate."""
        fastest = max(link.down_bytes_per_s or self.b0 for link in self.links)
        return max(1, min(math.floor(self.b0 / fastest + 1e-9), len(self.links)))


@dataclass(frozen=True, slots=True)
class Payload:
    """One safetensors file of bytes that do not compress."""

    path: Path
    size_bytes: int
    sha256: str

    @classmethod
    def make(cls, path: Path, size_bytes: int, seed: int = 0) -> Payload:
        path.parent.mkdir(parents=True, exist_ok=True)
        values = np.random.default_rng(seed).integers(0, 1 << 16, size_bytes // 2, dtype=np.uint16)
        save_file({"model.weight": values}, path, metadata={"format": "np"})
        return cls(path, path.stat().st_size, sha256_of(path))


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(slots=True)
class Outcome:
    """One run of one system. Times are seconds from the start; bytes are those on the trainer's wire, with headers."""

    system: str
    t_s: dict[str, float | None] = field(default_factory=dict)
    """By fraction of the workers."""
    source_wire_bytes: int | None = None
    relay_cpu_s_per_gb: float | None = None
    """Median over the workers that passed on at least half of the payload, over all where there are none."""
    identical: bool = False
    error: str | None = None
    detail: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Outcome:
        return cls(**{key: value[key] for key in cls.__dataclass_fields__ if key in value})


def times_of(done_s: Mapping[str, float], workers: int) -> dict[str, float | None]:
    """T(f): when the first ceil(f * N) workers had it; None when so many never did."""
    ordered = sorted(done_s.values())
    counts = {f: max(1, math.ceil(f * workers - 1e-9)) for f in FRACTIONS}
    return {f"{f:.1f}": ordered[count - 1] if count <= len(ordered) else None for f, count in counts.items()}


class System(Protocol):
    """A way to bring a file to every worker."""

    @property
    def key(self) -> str: ...

    @property
    def title(self) -> str: ...

    def missing(self) -> str | None:
        """Why it cannot run here, with the name of the package; None when it can."""

    async def run(self, course: Course, payload: Payload, directory: Path) -> Outcome:
        """One broadcast on fresh hosts; `directory` is empty, and removed afterwards. Raises ChappeError."""


def identical_copies(copies: Mapping[str, Path], workers: Sequence[str], payload: Payload) -> bool:
    """Every worker has the payload, bit for bit. Says on stderr who has not."""
    wrong = [n for n in workers if not copies[n].is_file() or sha256_of(copies[n]) != payload.sha256]
    for name in wrong:
        print(f"{name}: {copies[name]} is not the payload", file=sys.stderr)
    return not wrong


class Field:
    """`async with Field(course, directory) as ground`: the hosts; no process and no namespace afterwards."""

    def __init__(self, course: Course, directory: Path) -> None:
        self.course, self.directory = course, directory
        self.network = Network()
        self._helpers: list[Helper] = []

    async def __aenter__(self) -> Self:
        self.network.__enter__()
        try:
            self.network.host("trainer", self.course.trainer)
            for name, link in zip(self.course.names, self.course.links, strict=True):
                self.network.host(name, link)
                self.folder(name)
        except BaseException:
            self.network.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.network.close()
        await asyncio.gather(*(helper.wait() for helper in self._helpers))

    def address(self, name: str) -> str:
        return self.network.hosts[name].address

    def folder(self, name: str) -> Path:
        """Where a host keeps its files."""
        path = self.directory / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    async def start(self, host: str, *command: str, told: bool = False) -> Helper:
        """Start a program on a host; its stderr goes to a file in the host's folder.

        `told` programs read their stdin, a plain pipe. Others get none: uvloop's pipes are sockets, and with a socket
        there rsync thinks that inetd has started it.
        """
        log = self.folder(host) / f"stderr-{len(self._helpers)}.log"
        reading, writing = os.pipe() if told else (asyncio.subprocess.DEVNULL, None)
        try:
            with log.open("wb") as stderr:
                process = await asyncio.create_subprocess_exec(
                    *(program("ip"), "netns", "exec", self.network.namespace(host), *command),
                    stdin=reading,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=stderr,
                    start_new_session=True,
                )
        except BaseException:
            if writing is not None:
                os.close(writing)
            raise
        finally:
            if told:
                os.close(reading)
        helper = Helper(f"{Path(command[0]).name} on {host}", process, log, writing)
        self._helpers.append(helper)
        return helper

    async def start_python(self, host: str, module: str, *arguments: str) -> Helper:
        """`python -m module` on a host, when it has said `ready`."""
        helper = await self.start(host, sys.executable, "-m", module, *arguments, told=True)
        async with asyncio.timeout(START_TIMEOUT_S):
            await helper.line("ready")
        return helper

    async def start_timed(self, host: str) -> Helper:
        """A launcher that is told a command, runs it, and says when it ended."""
        launcher = Path(__file__).with_name("launcher.py")
        helper = await self.start(host, sys.executable, "-I", "-S", str(launcher), told=True)
        async with asyncio.timeout(START_TIMEOUT_S):
            await helper.line("ready")
        return helper

    async def wait_listening(self, host: str, port: int) -> None:
        namespace, deadline_s = self.network.namespace(host), time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                connect_within(namespace, port).close()
            except ConnectionRefusedError:
                if time.monotonic() > deadline_s:
                    raise PeerError(f"nobody listens on port {port} of {host}") from None
                await asyncio.sleep(_POLL_S)
            else:
                return

    def meter(self) -> Meter:
        return Meter(self.network, self.course.names)

    async def outcome(
        self,
        system: str,
        start_s: float,
        done: Mapping[str, float],
        used: tuple[int, float],
        payload: Payload,
        copies: Mapping[str, Path],
    ) -> Outcome:
        """The times from the start, what the meter said, and whether every copy is the payload bit for bit."""
        source, cpu = used
        times = times_of({name: at - start_s for name, at in done.items()}, len(self.course.links))
        identical = await asyncio.to_thread(identical_copies, copies, self.course.names, payload)
        detail = {"done_s": {name: round(at - start_s, 4) for name, at in sorted(done.items())}}
        return Outcome(system, times, source, cpu, identical, detail=detail)
