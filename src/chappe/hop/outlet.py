"""Where a child's stream goes: out on gRPC, and on a data connection of its own once the child has opened one.

    gRPC: header, pages, chunks ... ──offer taken──▶ TcpSwitch │ then nothing, or an End that is not COMPLETE
    TCP:                                                       │ pages, chunks, watermarks, End(COMPLETE)

Says how things are written on gRPC and in which amounts; what goes next is `chappe.hop.course`, and a data connection
is fed by its own thread (`chappe.hop.tcp_feed`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from chappe.clock import boot_now
from chappe.core.manifest import LEAF_BYTES, Manifest
from chappe.errors import ChappeError
from chappe.hop.source import ChunkSource, Data
from chappe.hop.tcp_dial import Dialled
from chappe.hop.tcp_listen import Offer
from chappe.hop.tcp_send import TcpOutlet
from chappe.v1.relay_pb2 import EndReason
from chappe.wire.frames import CHUNKS_PER_MESSAGE_MAX, encode_chunks, encode_end, encode_tcp_switch

BATCH_BYTES_MAX = LEAF_BYTES
"""Of one gRPC message: it is in memory, here and at the child."""
_UNSENT_CHUNKS = 2  # may wait in the kernel: about 20 ms of the link
_UNSENT_CHUNKS_IN_TURNS = 0.5
_BEGIN_BYTES_PER_S_MAX = 125e6  # above that pacing costs more than it gives
HOLD_S = 0.5
"""How long chunks wait for a data connection that was offered: two round trips of almost any link, with TLS three."""


@dataclass(slots=True)
class Packed:
    """Chunks ready to be written; `unreadable` ones are not among them."""

    message: bytes = b""
    size_bytes: int = 0
    chunks: list[int] = field(default_factory=list)
    unreadable: list[int] = field(default_factory=list)


class Outlet:
    """`write` takes a serialized FetchReply to the child's gRPC stream."""

    def __init__(
        self,
        write: Callable[[bytes], Awaitable[None]],
        offer: Offer | Dialled | None = None,
        expected_bytes_per_s: float = 0.0,
    ) -> None:
        """`expected_bytes_per_s` is what the link should carry, 0 for no idea."""
        self._expected_bytes_per_s = expected_bytes_per_s
        self.write = write
        self._offer = offer
        self._hold_until_s = None if offer is None else boot_now() + HOLD_S
        self._tcp: TcpOutlet | None = None
        self._beside: list[TcpOutlet] = []

    def held_back_s(self, now: float) -> float:
        """For how long chunks are to wait yet: the child is about to open its data connection; 0 for not at all.

        What goes out on gRPC meanwhile is in slow start, and starts again on the data connection, beside it: on a long
        link that costs several round trips, and a short one's queue is full when TCP first asks what the link carries.
        """
        return 0.0 if self._hold_until_s is None else max(0.0, self._hold_until_s - now)

    async def switch(self, manifest: Manifest, *, in_turns: bool = False) -> TcpOutlet | None:
        """The data connection, if it is there by now: the child has been told to look there.

        `in_turns`: each chunk may have the whole link, and others wait for what is left unsent.
        """
        tcp = None if self._offer is None else self._offer.take()
        if tcp is None:
            return None
        self._tcp = tcp
        self._hold_until_s = None
        tcp.limit_unsent(int((_UNSENT_CHUNKS_IN_TURNS if in_turns else _UNSENT_CHUNKS) * manifest.chunk_bytes))
        if not in_turns and 0 < self._expected_bytes_per_s <= _BEGIN_BYTES_PER_S_MAX:
            tcp.begin_at(self._expected_bytes_per_s)
        await self.write(encode_tcp_switch())
        return tcp

    def beside(self, tcp: TcpOutlet) -> None:
        """Another data connection of the same child, from now on."""
        self._beside.append(tcp)

    def limit_unsent(self, tcp: TcpOutlet, manifest: Manifest, streams: int) -> None:
        """Where there are so many connections, one holds back a part of a chunk: the rest goes where there is room."""
        tcp.limit_unsent(_UNSENT_CHUNKS * manifest.chunk_bytes // streams)

    def batch_chunks(self, manifest: Manifest, batch_bytes: float) -> int:
        """How many chunks may go together, when `batch_bytes` is what the link carries in a chunk's time."""
        return max(1, min(CHUNKS_PER_MESSAGE_MAX, int(min(batch_bytes, BATCH_BYTES_MAX)) // manifest.chunk_bytes))

    def pack(self, source: ChunkSource, chunks: Sequence[int]) -> Packed:
        """Reads them here and now."""
        packed = Packed()
        loaded: list[tuple[int, Data]] = []
        for chunk in chunks:
            try:
                data = source.read_chunk(chunk)
            except (OSError, ChappeError):
                packed.unreadable.append(chunk)
                continue
            packed.chunks.append(chunk)
            packed.size_bytes += len(data)
            loaded.append((chunk, data))
        if loaded:
            packed.message = encode_chunks(loaded)
        return packed

    async def end(self, reason: EndReason, detail: str = "") -> None:
        """COMPLETE stands behind all chunks, and a data connection's thread has said it there. Any other end goes past
        what still waits to be sent."""
        if self._tcp is None or reason != EndReason.END_REASON_COMPLETE:
            await self.write(encode_end(reason, detail))

    def cut(self) -> None:
        """The stream is to end: a child that does not read its data connection is not waited for."""
        for tcp in self._connections():
            tcp.close()

    def close(self) -> None:
        """Once, when the stream is over. What has been written still leaves."""
        if self._offer is not None:
            self._offer.close()
        for tcp in self._connections():
            tcp.close()

    def _connections(self) -> list[TcpOutlet]:
        return self._beside if self._tcp is None else [self._tcp, *self._beside]
