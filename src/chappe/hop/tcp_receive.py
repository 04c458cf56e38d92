"""The child's end of a data connection: one thread that dials it, reads frame by frame, and has each one taken.

    thread: connect, [TLS], hello ──▶ first head ──▶ waits for `go` ──▶ body ──▶ chunk: verified, stored, recorded here
    event loop:                                       (the switch)         ──▶ page, end: take(); the thread waits

A parent may be done with its connection, and have closed it, before the event loop hears on gRPC that it was taken: an
end counts only where it is read.

A chunk is at its end when the next one is read: the thread's slab, as large as the largest frame so far (2 MiB at
most), is all the memory there is, and TCP stops a parent that is faster than this node's disk. What was asked for and
what is right is for the taker to know (`chappe.hop.receive`); the thread checks the form of a frame. The event loop
hears of messages that are its business, and of the end.

On a slow link the kernel wakes the thread once for a chunk, not once for a packet (SO_RCVLOWAT), and less than that at
the beginning: what waits to be read closes the window, which the kernel opens only by what is read in a round trip.
"""

from __future__ import annotations

import asyncio
import errno
import math
import select
import socket
import ssl
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import grpc

from chappe.clock import boot_now
from chappe.errors import ChappeError, PeerError
from chappe.hop.net import Address, Tls
from chappe.hop.tcp_info import tcp_info
from chappe.hop.tcp_sockets import SOCKET_ERRORS, check_name, client_context, shut_down
from chappe.sigpipe import block_sigpipe
from chappe.v1.relay_pb2 import TcpMore, TcpOffer, TcpSwitch
from chappe.wire.frames import ChunkBatch, Reply, decode_reply
from chappe.wire.tcp_frames import (
    HEAD_BYTES,
    SECRET_BYTES,
    FrameHead,
    FrameKind,
    decode_head,
    encode_hello,
)

TCP_LOST = grpc.StatusCode.ABORTED
"""How a parent says on gRPC that the data connection of this Fetch broke, and that it is there itself."""
CONNECT_S = 1.0
HANDSHAKE_S = 5.0
_SLAB_BYTES_MIN = 64 << 10
_LOWAT_BYTES_MAX = 256 << 10  # well under any window that a fast link needs
_LOWAT_SHARE = 1 / 16
"""Of all that has come: in slow start a round trip brings half of that, so that an eighth of the window waits."""


@dataclass(frozen=True, slots=True)
class TcpRoute:
    """Where a parent's data connections are dialled: the host of its gRPC address. The port comes with the offer, and
    may be known before; 0 where it is not."""

    host: str
    tls: Tls | None
    expected_name: str
    port: int = 0
    streams: int = 1
    """How many the payload of one Fetch should have; the parent may offer more."""

    @classmethod
    def to(cls, address: Address, tls: Tls | None, expected_name: str, port: int = 0, streams: int = 1) -> TcpRoute:
        return cls(address.host, tls, expected_name, port, streams)


def check_offer(offer: TcpOffer) -> None:
    """Raises PeerError for one that cannot be meant."""
    if not 1 <= offer.port <= 65535 or len(offer.secret) != SECRET_BYTES:
        raise PeerError(f"an offer of port {offer.port} with a secret of {len(offer.secret)} bytes")


class FrameTaker(Protocol):
    """What becomes of what comes. Called in the thread of the data connection; what it raises ends that."""

    def take_chunk(self, chunk: int, data: memoryview, pause: Callable[[float], None]) -> None:
        """The data is good until this returns. `pause` waits so many seconds, or raises OSError when all is over."""

    def take_message(self, reply: Reply) -> bool:
        """False: it is for the event loop, and nothing more is read until that has dealt with it."""


class TcpInlet:
    """One data connection. All methods on the event loop's thread; `on_change` is called there."""

    def __init__(
        self, route: TcpRoute, port: int, secret: bytes, taker: FrameTaker, on_change: Callable[[], None]
    ) -> None:
        """Dials at once."""
        self.connected = False
        """The hello was said. The parent says on gRPC whether it has taken it."""
        self.problem: OSError | None = None
        """What ended the connection."""
        self.refused: BaseException | None = None
        """What ended it, when it is not the connection: PeerError, StoreError; or a fault of this program, which is for
        whoever waits to raise."""
        self._route, self._port, self._secret = route, port, secret
        self._taker, self._on_change = taker, on_change
        self._loop = asyncio.get_running_loop()
        self._connection: socket.socket | None = None
        self._over = threading.Event()
        self._may_read = threading.Event()
        self._dealt_with = threading.Semaphore(0)
        self._message: tuple[Reply, int] | None = None
        self._given = False
        self._took_s = boot_now()
        self._lock = threading.Lock()  # of closing against connecting
        try:
            threading.Thread(target=self._run, name="chappe-tcp-receive", daemon=True).start()
        except RuntimeError as error:  # so many are running that there can be no other: as if it could not be dialled
            self._unstarted(OSError(errno.EAGAIN, str(error)))

    # ---- the event loop's side -------------------------------------------------------------------------------------

    def go(self) -> None:
        """The parent has switched: read."""
        self._may_read.set()

    def take(self) -> tuple[Reply, int] | None:
        """The message that waits for the loop, and its size. The last one has been dealt with: the thread reads on."""
        if self._given:
            self._given = False
            self._dealt_with.release()
        message, self._message = self._message, None
        self._given = message is not None
        return message

    def silent_s(self) -> float:
        """Since something came, or was taken of what had come. Infinite where the kernel does not say."""
        with self._lock:
            info = None if self._connection is None else tcp_info(self._connection)
        return math.inf if info is None else min(info.silent_s, boot_now() - self._took_s)

    def close(self) -> None:
        """End the thread, wherever it is, and the connection. A chunk that it is storing now is still stored."""
        with self._lock:
            self._over.set()
            if self._connection is not None:
                shut_down(self._connection)
        self._may_read.set()
        self._dealt_with.release()

    def _unstarted(self, problem: OSError) -> None:
        self.problem = problem
        self._loop.call_soon(self._on_change)

    # ---- the thread's ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        block_sigpipe()
        connection: socket.socket | None = None
        try:
            connection = self._connected()
            self.connected = True
            self._read(connection)
        except _RefusedError as error:
            self.refused = error.cause
        except SOCKET_ERRORS as error:
            self.problem = error
        finally:
            # Known before the socket is closed: of that the parent says on gRPC that the connection is gone.
            if (fault := sys.exception()) is not None:  # nothing that may be: it also ends this thread, in the log
                self.refused = fault
            with self._lock:
                self._connection = None
                if connection is not None:
                    connection.close()
            self._tell()

    def _connected(self) -> socket.socket:
        try:
            return self._connect()
        except ValueError as error:  # a host or a certificate that is none
            raise OSError(str(error)) from error

    def _connect(self) -> socket.socket:
        route = self._route
        connection = socket.create_connection((route.host, self._port), CONNECT_S)
        try:
            self._adopt(connection)
            connection.settimeout(HANDSHAKE_S)
            if route.tls is not None:
                connection = self._secure(connection, route.tls)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(encode_hello(self._secret))
            connection.settimeout(None)  # from here on the loop's patience counts, and `close` ends it
        except BaseException:
            connection.close()
            raise
        return connection

    def _adopt(self, connection: socket.socket) -> None:
        with self._lock:
            self._refuse_if_over()
            self._connection = connection

    def _secure(self, connection: socket.socket, tls: Tls) -> ssl.SSLSocket:
        """Takes the socket over, also for `close`, before the handshake. Raises SSLError, OSError."""
        context = client_context(tls)
        with self._lock:
            self._refuse_if_over()
            secured = context.wrap_socket(connection, do_handshake_on_connect=False)
            self._connection = secured
        try:
            secured.do_handshake()
            check_name(secured, self._route.expected_name)
        except BaseException:
            secured.close()
            raise
        return secured

    def _refuse_if_over(self) -> None:
        if self._over.is_set():
            raise OSError("not wanted any more")

    def _read(self, connection: socket.socket) -> None:
        head, slab = memoryview(bytearray(HEAD_BYTES)), memoryview(bytearray(_SLAB_BYTES_MIN))
        total = 0
        while not self._over.is_set():
            _fill(connection, head, 0)
            self._may_read.wait()
            if self._over.is_set():
                return
            try:
                frame = decode_head(head)
            except PeerError as error:
                raise _RefusedError(error) from error
            if frame.length > len(slab):
                slab = memoryview(bytearray(frame.length))
            body = slab[: frame.length]
            total += HEAD_BYTES + _fill(connection, body, total)
            try:
                given = self._give(frame, body)
            except ChappeError as error:
                raise _RefusedError(error) from error
            self._took_s = boot_now()
            if not given:
                self._tell()
                self._dealt_with.acquire()

    def _give(self, frame: FrameHead, body: memoryview) -> bool:
        """Whether it is done with."""
        if frame.kind is FrameKind.CHUNK:
            self._taker.take_chunk(frame.number, body, self._pause)
            return True
        reply = decode_reply(bytes(body))
        if isinstance(reply, ChunkBatch | TcpOffer | TcpSwitch | TcpMore):
            raise PeerError(f"a {type(reply).__name__} in a message on a data connection")
        if self._taker.take_message(reply):
            return True
        self._message = reply, frame.length
        return False

    def _pause(self, seconds: float) -> None:
        self._over.wait(seconds)
        self._refuse_if_over()

    def _tell(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._on_change)
        except RuntimeError:
            return  # the loop is closed: nobody waits


class _RefusedError(Exception):
    """It is not the connection that is the trouble."""

    def __init__(self, cause: ChappeError) -> None:
        super().__init__(str(cause))
        self.cause = cause


def _fill(connection: socket.socket, view: memoryview, before: int) -> int:
    """Read exactly this much and return it; `before` bytes have come already. Raises OSError at an end before that."""
    done = 0
    plain = not isinstance(connection, ssl.SSLSocket)
    while done < len(view):
        lowat_bytes = _lowat_bytes(before + done, len(view) - done)
        if plain and lowat_bytes > 1:
            got = _receive_much(connection, view[done:], lowat_bytes)
        else:
            got = connection.recv_into(view[done:])
        if got == 0:
            raise OSError("the parent closed the data connection")
        done += got
    return done


def _lowat_bytes(before: int, left: int) -> int:
    """How much the kernel should gather of the `left` bytes before it wakes the thread, after `before` in all."""
    return min(left, _LOWAT_BYTES_MAX, int(_LOWAT_SHARE * before))


def _receive_much(connection: socket.socket, view: memoryview, lowat_bytes: int) -> int:
    """What is there, or else wait until so much is there before the kernel wakes this thread."""
    try:
        return connection.recv_into(view, 0, socket.MSG_DONTWAIT)
    except BlockingIOError:
        pass
    # Not by a `recv` that waits: it takes what comes before it does, and is then woken by as much again, which may be
    # more than this parent has to send for now.
    waiting = select.poll()
    waiting.register(connection, select.POLLIN)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, lowat_bytes)
    try:
        waiting.poll()
    finally:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
    return connection.recv_into(view)
