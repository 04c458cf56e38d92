"""Where a child's stream goes: out on gRPC, and on a data connection of its own once the child has opened one.

    gRPC: header, pages, chunks ... ──offer taken──▶ TcpSwitch │ then nothing, or an End that is not COMPLETE
    TCP:                                                       │ pages, chunks, watermarks, End(COMPLETE)

Says how things are written and in which amounts; what goes next is `chappe.hop.stream`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from chappe.clock import boot_now
from chappe.core.manifest import LEAF_BYTES, Manifest
from chappe.errors import ChappeError
from chappe.hop.source import ChunkFiles, ChunkSource, Data
from chappe.hop.tcp_listen import Offer
from chappe.hop.tcp_send import FileChunk, Piece, TcpOutlet
from chappe.v1.relay_pb2 import EndReason
from chappe.wire.frames import CHUNKS_PER_MESSAGE_MAX, encode_chunks, encode_end, encode_tcp_switch
from chappe.wire.tcp_frames import HEAD_BYTES, encode_chunk_head, encode_message

BATCH_BYTES_MAX = LEAF_BYTES
"""Of one gRPC message: it is in memory, here and at the child."""
TCP_BATCH_BYTES_MAX = 8 << 20
"""Of what a sender thread is given at a time: it is in files."""
TCP_BATCH_CHUNKS_MAX = 128
_UNSENT_CHUNKS = 2  # may wait in the kernel: about 20 ms of the link
_BEGIN_BYTES_PER_S_MAX = 125e6  # above that pacing costs more than it gives
HOLD_S = 0.5
"""How long chunks wait for a data connection that was offered: two round trips of almost any link, with TLS three."""


@dataclass(slots=True)
class Packed:
    """Chunks ready to be written; `unreadable` ones are not among them."""

    pieces: list[Piece] = field(default_factory=list)
    size_bytes: int = 0
    chunks: list[int] = field(default_factory=list)
    unreadable: list[int] = field(default_factory=list)


class Outlet:
    """`write` takes a serialized FetchReply to the child's gRPC stream. `on_piece` may be called from any thread."""

    def __init__(
        self,
        write: Callable[[bytes], Awaitable[None]],
        offer: Offer | None = None,
        on_piece: Callable[[], None] | None = None,
        expected_bytes_per_s: float = 0.0,
    ) -> None:
        """`expected_bytes_per_s` is what the link should carry, 0 for no idea."""
        self._expected_bytes_per_s = expected_bytes_per_s
        self._write = write
        self._offer = offer
        self._on_piece = on_piece
        self._hold_until_s = None if offer is None else boot_now() + HOLD_S
        self._tcp: TcpOutlet | None = None

    def held_back_s(self, now: float) -> float:
        """For how long chunks are to wait yet: the child is about to open its data connection; 0 for not at all.

        What goes out on gRPC meanwhile is in slow start, and starts again on the data connection, beside it: on a long
        link that costs several round trips, and a short one's queue is full when TCP first asks what the link carries.
        """
        return 0.0 if self._hold_until_s is None else max(0.0, self._hold_until_s - now)

    async def switch(self, manifest: Manifest) -> bool:
        """Go over to the data connection if it is there by now."""
        tcp = None if self._offer is None else self._offer.take()
        if tcp is None:
            return False
        self._tcp = tcp
        self._hold_until_s = None
        tcp.on_piece = self._on_piece
        tcp.limit_unsent(_UNSENT_CHUNKS * manifest.chunk_bytes)
        if 0 < self._expected_bytes_per_s <= _BEGIN_BYTES_PER_S_MAX:
            tcp.begin_at(self._expected_bytes_per_s)
        await self._write(encode_tcp_switch())
        return True

    def batch_chunks(self, manifest: Manifest, batch_bytes: float) -> int:
        """How many chunks may go together, when `batch_bytes` is what the link carries in a chunk's time."""
        bytes_max, chunks_max = (
            (BATCH_BYTES_MAX, CHUNKS_PER_MESSAGE_MAX)
            if self._tcp is None
            else (TCP_BATCH_BYTES_MAX, TCP_BATCH_CHUNKS_MAX)
        )
        return max(1, min(chunks_max, int(min(batch_bytes, bytes_max)) // manifest.chunk_bytes))

    def pack(self, source: ChunkSource, manifest: Manifest, chunks: Sequence[int]) -> Packed:
        """Reads them here and now, except where a sender thread will take them from their files."""
        packed = Packed()
        loaded: list[tuple[int, Data]] = []
        files = source if self._tcp is not None and isinstance(source, ChunkFiles) else None
        for chunk in chunks:
            opened = None if files is None else files.open_chunk(chunk)
            if opened is not None:
                piece = FileChunk(chunk, manifest.place(chunk).length, opened)
                packed.pieces.append(piece)
                packed.size_bytes += HEAD_BYTES + piece.length
                packed.chunks.append(chunk)
                continue
            try:
                data = source.read_chunk(chunk)
            except (OSError, ChappeError):
                packed.unreadable.append(chunk)
                continue
            packed.chunks.append(chunk)
            if self._tcp is None:
                loaded.append((chunk, data))
            else:
                packed.pieces.append(encode_chunk_head(chunk, len(data)) + data)
                packed.size_bytes += HEAD_BYTES + len(data)
        if loaded:
            packed.pieces = [encode_chunks(loaded)]
            packed.size_bytes = sum(len(data) for _, data in loaded)
        return packed

    def message(self, reply: bytes) -> bytes:
        """A serialized FetchReply as a piece to put."""
        return reply if self._tcp is None else encode_message(reply)

    async def put(self, pieces: Sequence[Piece]) -> list[int]:
        """Write them; returns the chunks that could not be read after all. Raises what `write` does, TcpLostError."""
        if self._tcp is not None:
            return await self._tcp.send(pieces)
        for piece in pieces:
            assert isinstance(piece, bytes)
            await self._write(piece)
        return []

    async def end(self, reason: EndReason, detail: str = "") -> None:
        """COMPLETE stands behind all chunks; any other end goes past what still waits to be sent."""
        reply = encode_end(reason, detail)
        if reason == EndReason.END_REASON_COMPLETE:
            await self.put([self.message(reply)])
        else:
            await self._write(reply)

    def cut(self) -> None:
        """The stream is to end: a child that does not read its data connection is not waited for."""
        if self._tcp is not None:
            self._tcp.close()

    def close(self) -> None:
        """Once, when the stream is over. What has been put still leaves."""
        if self._offer is not None:
            self._offer.close()
        if self._tcp is not None:
            self._tcp.close()
