"""The last chunks of an object, in memory: a child that has caught up is served without a read."""

from __future__ import annotations

from collections import OrderedDict

from chappe.hop.source import Data

RECENT_BYTES_MAX = 8 << 20
"""Per object, whatever its size: a few chunk times of any link, and small beside a relay's 40 MB."""


class RecentChunks:
    """First in, first out. `get` may be called from any thread."""

    def __init__(self, limit_bytes: int = RECENT_BYTES_MAX) -> None:
        self._limit_bytes = limit_bytes
        self._chunks: OrderedDict[int, Data] = OrderedDict()
        self._bytes = 0

    @property
    def held_bytes(self) -> int:
        return self._bytes

    def get(self, chunk: int) -> Data | None:
        return self._chunks.get(chunk)

    def put(self, chunk: int, data: Data) -> None:
        self.forget(chunk)
        self._chunks[chunk] = data
        self._bytes += len(data)
        while self._bytes > self._limit_bytes:
            self._bytes -= len(self._chunks.popitem(last=False)[1])

    def forget(self, chunk: int) -> None:
        self._bytes -= len(self._chunks.pop(chunk, b""))
