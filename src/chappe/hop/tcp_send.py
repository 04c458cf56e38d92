"""The parent's end of a data connection: a thread of its own, in which work is done and things are written.

    event loop ──run(work)──▶ thread: work() ──▶ write(bytes), write_chunk: sendfile, or pread and write under TLS
               ◀── its result, or what it raised ──┘

A slow child costs the thread's stack, the socket's buffer and a cursor. Whoever ends the connection shuts the socket
down, which wakes a thread that writes; the thread closes it. Decides nothing: that is `chappe.hop.tcp_feed`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import queue
import socket
import ssl
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from chappe.errors import ChappeError
from chappe.hop.source import ChunkSpan
from chappe.hop.tcp_info import (
    TcpInfo,
    choose_congestion_control,
    congestion_control,
    tcp_info,
    unacknowledged_bytes,
)
from chappe.hop.tcp_sockets import SOCKET_ERRORS, allow_unacknowledged, limit_pace, set_unsent_limit, shut_down
from chappe.sigpipe import block_sigpipe
from chappe.wire.tcp_frames import encode_chunk_head

log = logging.getLogger(__name__)

Result = TypeVar("Result")

BEGIN_SHARE = 1.25
BEGIN_S = 0.5
"""On a link of so long a round trip it changes nothing: slow start takes longer to get there."""
FINISH_S = 1.0
_BLOCK_BYTES = 256 << 10  # of a chunk that goes through memory: it stays in the processor's cache


class TcpLostError(ChappeError):
    """The data connection is gone; the conversation on gRPC may still be there. `doubted`: a chunk to look at again."""

    def __init__(self, message: str, doubted: int | None = None) -> None:
        super().__init__(message)
        self.doubted = doubted


class FileChunk(NamedTuple):
    """A chunk to send. `file` is entered once, in the thread; see `chappe.hop.source.ChunkFiles`."""

    number: int
    length: int
    file: AbstractContextManager[ChunkSpan]


@dataclass(slots=True)
class _Job:
    work: Callable[[], Any]
    done: asyncio.Future[Any]


def open_outlet(connection: socket.socket) -> TcpOutlet | None:
    """None for a connection that has broken meanwhile, or that can have no thread."""
    try:
        return TcpOutlet(connection)
    except OSError as error:
        log.info("a data connection that was opened is not used: %s", error)
        connection.close()
        return None


class TcpOutlet:
    """Takes over a connected, blocking socket. All methods on the event loop's thread, except where it says."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._pending: _Job | None = None
        self._closed = False
        self._buffer: memoryview | None = None
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        allow_unacknowledged(connection)
        self._thread = threading.Thread(target=self._run, name="chappe-tcp-send", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # so many are running that there can be no other
            raise OSError(errno.EAGAIN, str(error)) from error

    def limit_unsent(self, size_bytes: int) -> None:
        """See `set_unsent_limit`."""
        with contextlib.suppress(OSError):  # closed by its thread meanwhile: the next `run` will say so
            set_unsent_limit(self._connection, size_bytes)

    def round_trip_s(self) -> float:
        """The shortest of late; 0 where the kernel does not say. From any thread, as the next four."""
        info = tcp_info(self._connection)
        return 0.0 if info is None else info.round_trip_s_min

    def acknowledged_bytes(self) -> int:
        """Of all that was written, TLS included: at the child's host. 0 where the kernel does not say."""
        info = tcp_info(self._connection)
        return 0 if info is None else info.bytes_acknowledged

    def given_bytes(self) -> int | None:
        """What `acknowledged_bytes` will be once all is there that was written; None where the kernel does not say."""
        waiting = unacknowledged_bytes(self._connection)  # first: what arrives meanwhile counts twice, not never
        return None if waiting is None else waiting + self.acknowledged_bytes()

    def unanswered(self) -> int:
        """Timeouts in a row in which nothing was acknowledged."""
        info = tcp_info(self._connection)
        return 0 if info is None else info.unanswered

    def info(self) -> TcpInfo | None:
        """What the kernel says of it; None where it does not."""
        return tcp_info(self._connection)

    def congestion_control(self) -> str:
        return congestion_control(self._connection)

    def choose_congestion_control(self, name: str) -> bool:
        """False where it cannot be had."""
        return choose_congestion_control(self._connection, name)

    def break_off(self) -> None:
        """As if the connection had broken."""
        shut_down(self._connection)

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

    async def run(self, work: Callable[[], Result]) -> Result:
        """What it returns, in the thread; it writes there with `write` and `write_chunk`. One at a time.

        Raises what it raises. TcpLostError is the end of the connection; a `close` raises it here at once.
        """
        if self._closed:
            raise TcpLostError("the data connection is closed")
        job = self._pending = _Job(work, self._loop.create_future())
        self._jobs.put(job)
        try:
            result: Result = await job.done
            return result
        finally:
            self._pending = None

    def finish(self) -> None:
        """End it behind what is being written, within `FINISH_S`: a child that has hung up may read that all the same.
        Nobody waits in `run` any more."""
        if not self._closed:
            self._closed = True
            self._jobs.put(None)
            self._loop.call_later(FINISH_S, shut_down, self._connection)

    def close(self) -> None:
        """End it; what was written still leaves. A `run` that waits raises TcpLostError."""
        if self._closed:
            return
        self._closed = True
        shut_down(self._connection)
        self._jobs.put(None)
        if self._pending is not None and not self._pending.done.done():
            self._pending.done.set_exception(TcpLostError("the data connection was closed"))

    # ---- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        block_sigpipe()
        try:
            over = False
            while not over and (job := self._jobs.get()) is not None:
                over = self._do(job)
        finally:
            self._connection.close()

    def _do(self, job: _Job) -> bool:
        """Whether that was the last one."""
        result: object = None
        problem: BaseException | None = None
        try:
            result = job.work()
        except (OSError, ChappeError) as error:
            problem = error
        finally:
            fault = sys.exception()  # nothing that may be: whoever waits raises it, and it ends this thread, in the log
            over = fault is not None or isinstance(problem, TcpLostError)
            self._tell(job, result, fault or problem, over)
        return over

    def _tell(self, job: _Job, result: object, problem: BaseException | None, over: bool) -> None:
        def tell() -> None:
            self._closed = self._closed or over
            if job.done.done():
                return
            if problem is None:
                job.done.set_result(result)
            else:
                job.done.set_exception(problem)

        try:
            self._loop.call_soon_threadsafe(tell)
        except RuntimeError:
            return  # the loop is closed: nobody waits

    def write(self, data: bytes) -> None:
        """In the thread: return when the kernel has taken all of it. Raises TcpLostError."""
        try:
            self._connection.sendall(data)
        except SOCKET_ERRORS as error:
            raise TcpLostError(f"the data connection broke: {error}") from error

    def write_chunk(self, chunk: FileChunk) -> bool:
        """In the thread. False: it could not be read, and nothing was sent. Raises TcpLostError, also in its middle."""
        begun = False
        try:
            with chunk.file as span:
                begun = True
                self._copy(chunk, span)
        except (OSError, ChappeError) as error:
            if begun:  # its frame cannot be finished
                raise TcpLostError(f"chunk {chunk.number} was not sent to its end: {error}", chunk.number) from error
            return False
        return True

    def _copy(self, chunk: FileChunk, span: ChunkSpan) -> None:
        connection = self._connection
        head = encode_chunk_head(chunk.number, chunk.length)
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
