"""The same bytes over a chain of bare sockets: what a relay cannot do without, in one blocking thread a hop.

    source ──sendfile──▶ relay: receive 1 MiB, hash, pwrite, send ──▶ tail: receive 1 MiB, hash, pwrite

`python -m bench.barehop ROLE ...` is one of them. No manifest, no verification against one, no second try.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import xxhash

BLOCK_BYTES = 1 << 20
_TIMEOUT_S = 200.0


@dataclass(frozen=True, slots=True)
class BareRun:
    """Rates are 10^9 bytes per second, CPU is seconds per 10^9 bytes, memory is bytes."""

    took_s: float
    goodput_gb_per_s: float
    middle_cpu_s_per_gb: float
    tail_cpu_s_per_gb: float
    middle_rss_max_bytes: int
    tail_rss_max_bytes: int


def measure(source: Path, directory: Path) -> BareRun:
    """Send a file through a relay to a tail; both keep a copy in `directory`. Loopback."""
    size_bytes = source.stat().st_size
    with _start("relay", directory / "tail.copy", size_bytes, 0) as tail:
        tail_port = int(_line(tail))
        with _start("relay", directory / "middle.copy", size_bytes, tail_port) as middle:
            port = int(_line(middle))
            started = time.perf_counter()
            with _start("source", source, size_bytes, port):
                ended = [json.loads(_line(process)) for process in (middle, tail)]
            took_s = time.perf_counter() - started
    for name in ("tail.copy", "middle.copy"):
        (directory / name).unlink()
    gigabytes = size_bytes / 1e9
    cpu = [float(end["cpu_s"]) / gigabytes for end in ended]
    return BareRun(took_s, gigabytes / took_s, *cpu, *(int(end["rss_max_bytes"]) for end in ended))


def _start(role: str, path: Path, size_bytes: int, port: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench.barehop", role, str(path), str(size_bytes), str(port)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _line(process: subprocess.Popen[str]) -> str:
    out: IO[str] | None = process.stdout
    assert out is not None
    return out.readline()


def _source(path: str, size_bytes: int, port: int) -> None:
    with Path(path).open("rb") as file, socket.create_connection(("127.0.0.1", port), _TIMEOUT_S) as peer:
        peer.settimeout(None)
        peer.sendfile(file, 0, size_bytes)


def _relay(path: str, size_bytes: int, port: int) -> None:
    following = socket.create_connection(("127.0.0.1", port), _TIMEOUT_S) if port else None
    if following is not None:
        following.settimeout(None)
    server = socket.create_server(("127.0.0.1", 0))
    print(server.getsockname()[1], flush=True)
    peer, _ = server.accept()
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    os.ftruncate(fd, size_bytes)
    buffer = memoryview(bytearray(BLOCK_BYTES))
    before = resource.getrusage(resource.RUSAGE_SELF)
    at = 0
    while at < size_bytes:
        block = buffer[: min(BLOCK_BYTES, size_bytes - at)]
        if peer.recv_into(block, 0, socket.MSG_WAITALL) != len(block):
            raise SystemExit("the source closed too early")
        xxhash.xxh3_128_digest(block)
        os.pwrite(fd, block, at)
        if following is not None:
            following.sendall(block)
        at += len(block)
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps({"cpu_s": cpu_s, "rss_max_bytes": after.ru_maxrss << 10}), flush=True)
    if following is not None:
        following.close()


if __name__ == "__main__":
    role, where, size, then = sys.argv[1:5]
    (_source if role == "source" else _relay)(where, int(size), int(then))
