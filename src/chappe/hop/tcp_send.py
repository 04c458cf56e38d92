"""The parent's end of a data connection: one thread that writes what it is given, chunks straight out of their files.

    ChildStream (event loop) ──send([frame, chunk, chunk, ...])──▶ thread: sendfile, or pread and write under TLS
                             ◀──────── one wake-up a batch ───────

A batch is a few milliseconds of the link, so a slow child costs the thread's stack, the socket's buffer and a cursor.
Whoever ends the connection shuts the socket down, which wakes the thread; the thread closes it. Decides nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import queue
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from chappe.errors import ChappeError
from chappe.hop.source import ChunkSpan
from chappe.hop.tcp_sockets import SOCKET_ERRORS, allow_unacknowledged, limit_pace, set_unsent_limit, shut_down
from chappe.wire.tcp_frames import encode_chunk_head

BEGIN_SHARE = 1.25
BEGIN_S = 0.5
"""On a link of so long a round trip it changes nothing: slow start takes longer to get there."""
_BLOCK_BYTES = 256 << 10  # of a chunk that goes through memory: it stays in the processor's cache


class TcpLostError(ChappeError):
    """The data connection is gone; the conversation on gRPC may still be there. `doubted`: a chunk to look at again."""

    def __init__(self, message: str, doubted: int | None = None) -> None:
        super().__init__(message)
        self.doubted = doubted


@dataclass(frozen=True, slots=True)
class FileChunk:
    """A chunk to send. `file` is entered once, in the thread; see `chappe.hop.source.ChunkFiles`."""

    index: int
    length: int
    file: AbstractContextManager[ChunkSpan]


Piece = bytes | FileChunk


@dataclass(slots=True)
class _Batch:
    pieces: Sequence[Piece]
    done: asyncio.Future[list[int]]
    unreadable: list[int] = field(default_factory=list)


class TcpOutlet:
    """Takes over a connected, blocking socket. All methods on the event loop's thread."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._batches: queue.SimpleQueue[_Batch | None] = queue.SimpleQueue()
        self._pending: _Batch | None = None
        self._closed = False
        self.on_piece: Callable[[], None] | None = None
        """Called in the thread after each piece: a batch may take long on a link that has become slow."""
        self._buffer: memoryview | None = None
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        allow_unacknowledged(connection)
        self._thread = threading.Thread(target=self._run, name="chappe-tcp-send", daemon=True)
        self._thread.start()

    def limit_unsent(self, size_bytes: int) -> None:
        """See `set_unsent_limit`."""
        with contextlib.suppress(OSError):  # closed by its thread meanwhile: the next `send` will say so
            set_unsent_limit(self._connection, size_bytes)

    def begin_at(self, bytes_per_s: float) -> None:
        """Do not send faster than a quarter more than this for a moment.

        What a shaper lets pass at once at the beginning, and what the streams beside this one leave of a link that is
        theirs as well, is taken for the link by the congestion control, and not forgotten for a second or more: one of
        eight streams of an origin was left with 0.4 of its part.
        """
        with contextlib.suppress(OSError):
            limit_pace(self._connection, BEGIN_SHARE * bytes_per_s)
            self._loop.call_later(BEGIN_S, self._let_go)

    def _let_go(self) -> None:
        with contextlib.suppress(OSError):  # it has been closed
            limit_pace(self._connection, None)

    async def send(self, pieces: Sequence[Piece]) -> list[int]:
        """Return when the kernel has taken all of it; the chunks that could not be read, and were not sent.

        One call at a time. Raises TcpLostError, also for a chunk that turned out unreadable in its middle.
        """
        if self._closed:
            raise TcpLostError("the data connection is closed")
        batch = self._pending = _Batch(pieces, self._loop.create_future())
        self._batches.put(batch)
        try:
            return await batch.done
        finally:
            self._pending = None

    def close(self) -> None:
        """End it; what `send` has returned for still leaves. A `send` that waits raises TcpLostError."""
        if self._closed:
            return
        self._closed = True
        shut_down(self._connection)
        self._batches.put(None)
        if self._pending is not None and not self._pending.done.done():
            self._pending.done.set_exception(TcpLostError("the data connection was closed"))

    # ---- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (batch := self._batches.get()) is not None:
                problem: TcpLostError | None = None
                try:
                    self._write(batch)
                except TcpLostError as error:
                    problem = error
                except SOCKET_ERRORS as error:
                    problem = TcpLostError(f"the data connection broke: {error}")
                self._tell(batch, problem)
                if problem is not None:
                    return
        finally:
            self._connection.close()

    def _tell(self, batch: _Batch, problem: TcpLostError | None) -> None:
        def tell() -> None:
            self._closed = self._closed or problem is not None
            if batch.done.done():
                return
            if problem is None:
                batch.done.set_result(batch.unreadable)
            else:
                batch.done.set_exception(problem)

        try:
            self._loop.call_soon_threadsafe(tell)
        except RuntimeError:
            return  # the loop is closed: nobody waits

    def _write(self, batch: _Batch) -> None:
        for piece in batch.pieces:
            if isinstance(piece, bytes):
                self._connection.sendall(piece)
            else:
                self._write_chunk(piece, batch.unreadable)
            if self.on_piece is not None:
                self.on_piece()

    def _write_chunk(self, chunk: FileChunk, unreadable: list[int]) -> None:
        begun = False
        try:
            with chunk.file as span:
                begun = True
                self._copy(chunk, span)
        except (OSError, ChappeError) as error:
            if begun:  # its frame cannot be finished
                raise TcpLostError(f"chunk {chunk.index} was not sent to its end: {error}", chunk.index) from error
            unreadable.append(chunk.index)

    def _copy(self, chunk: FileChunk, span: ChunkSpan) -> None:
        connection = self._connection
        head = encode_chunk_head(chunk.index, chunk.length)
        if isinstance(connection, ssl.SSLSocket):
            self._copy_through(connection, head, chunk, span)
            return
        connection.sendall(head, socket.MSG_MORE)
        at, end = span.offset, span.offset + chunk.length
        while at < end:
            sent = os.sendfile(connection.fileno(), span.descriptor, at, end - at)
            if sent == 0:
                raise OSError(errno.EIO, "the file is cut short")
            at += sent

    def _copy_through(self, connection: ssl.SSLSocket, head: bytes, chunk: FileChunk, span: ChunkSpan) -> None:
        if self._buffer is None:
            self._buffer = memoryview(bytearray(_BLOCK_BYTES))
        connection.sendall(head)
        at, end = span.offset, span.offset + chunk.length
        while at < end:
            block = self._buffer[: min(_BLOCK_BYTES, end - at)]
            got = os.preadv(span.descriptor, [block], at)
            if got == 0:
                raise OSError(errno.EIO, "the file is cut short")
            connection.sendall(block[:got])
            at += got
