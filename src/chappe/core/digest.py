"""Digest algorithms. xxh3_128 guards against corruption; with a signing key it is BLAKE3 (design.md, section 4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import blake3
import xxhash


class Hasher(Protocol):
    """An incremental digest."""

    def update(self, data: bytes | bytearray | memoryview, /) -> object: ...
    def digest(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Algorithm:
    """`once` and `start` release the GIL for large inputs."""

    name: str
    digest_bytes: int
    once: Callable[[bytes | bytearray | memoryview], bytes]
    start: Callable[[], Hasher]


def _blake3_once(data: bytes | bytearray | memoryview) -> bytes:
    return blake3.blake3(data).digest()


XXH3_128 = Algorithm("xxh3_128", 16, xxhash.xxh3_128_digest, xxhash.xxh3_128)
BLAKE3 = Algorithm("blake3", 32, _blake3_once, blake3.blake3)
ALGORITHMS = {a.name: a for a in (XXH3_128, BLAKE3)}
