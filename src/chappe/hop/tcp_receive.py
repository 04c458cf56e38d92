"""The child's end of a data connection: one thread that dials it, then reads frames into slabs and hashes chunks.

    thread: connect, [TLS], hello ──▶ waits for `go` ──▶ head, body into a slab, hash ──▶ `ready`
    event loop:                        (the switch)        take() ◀── one wake-up for all that is there

Three slabs of 2 MiB are all the memory there is: while the loop has not taken what lies in them, nothing is read, and
TCP stops the parent. The thread checks the form of a frame and nothing else: what was asked for, and whether the digest
is the page's, is for the loop (`chappe.hop.receive`), which alone touches the store.

On a slow link the kernel wakes the thread once for a chunk, not once for a packet (SO_RCVLOWAT), and less than that at
the beginning: what waits to be read closes the window, which the kernel opens only by what is read in a round trip.
"""

from __future__ import annotations

import asyncio
import queue
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import grpc

from chappe.core.digest import Algorithm
from chappe.errors import PeerError
from chappe.hop.net import Address, Tls
from chappe.hop.tcp_sockets import SOCKET_ERRORS, certificate_names, client_context, shut_down
from chappe.v1.relay_pb2 import TcpOffer
from chappe.wire.tcp_frames import BODY_BYTES_MAX, HEAD_BYTES, SECRET_BYTES, FrameKind, decode_head, encode_hello

TCP_LOST = grpc.StatusCode.ABORTED
"""How a parent says on gRPC that the data connection of this Fetch broke, and that it is there itself."""
CONNECT_S = 1.0
HANDSHAKE_S = 5.0
SLABS = 3
_ROOM_MIN = 256  # that a frame takes in a slab at least: so that small ones, too, are bounded in number
_LOWAT_BYTES_MAX = 256 << 10  # well under any window that a fast link needs
_LOWAT_SHARE = 1 / 16
"""Of all that has come: in slow start a round trip brings half of that, so that an eighth of the window waits."""


@dataclass(frozen=True, slots=True)
class TcpRoute:
    """Where a parent's data connections are dialled: the host of its gRPC address; the port comes with the offer."""

    host: str
    tls: Tls | None
    expected_name: str

    @classmethod
    def to(cls, address: Address, tls: Tls | None, expected_name: str) -> TcpRoute:
        return cls(address.host, tls, expected_name)


def check_offer(offer: TcpOffer) -> None:
    """Raises PeerError for one that cannot be meant."""
    if not 1 <= offer.port <= 65535 or len(offer.secret) != SECRET_BYTES:
        raise PeerError(f"an offer of port {offer.port} with a secret of {len(offer.secret)} bytes")


@dataclass(frozen=True, slots=True)
class ReceivedChunk:
    """`data` lies in a slab and is good until the next `take`. `digest` is None before the header was known."""

    index: int
    data: memoryview
    digest: bytes | None


Frame = ReceivedChunk | bytes
"""A chunk, or a serialized FetchReply."""


class _Slab:
    """Memory that the thread fills from its start, and that is free again when all of it has been taken."""

    __slots__ = ("open", "users", "view")

    def __init__(self) -> None:
        self.view = memoryview(bytearray(BODY_BYTES_MAX))
        self.users = 0
        self.open = True


class TcpInlet:
    """One data connection. All methods on the event loop's thread; `on_change` is called there."""

    def __init__(
        self,
        route: TcpRoute,
        offer: TcpOffer,
        algorithm: Callable[[], Algorithm | None],
        on_change: Callable[[], None],
    ) -> None:
        """Dials at once. `algorithm` is asked from the thread, for each chunk."""
        self.connected = False
        """The hello was said. The parent says on gRPC whether it has taken it."""
        self._route, self._offer = route, offer
        self._algorithm, self._on_change = algorithm, on_change
        self._loop = asyncio.get_running_loop()
        self._connection: socket.socket | None = None
        self._problem: Exception | None = None
        self._closed = False
        self._may_read = threading.Event()
        self._ready: deque[tuple[Frame | memoryview, _Slab]] = deque()
        self._taken: list[_Slab] = []
        self._free: queue.SimpleQueue[_Slab | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # of the slabs' counts, and of closing against connecting
        self._slabs = 0
        self._told = False
        threading.Thread(target=self._run, name="chappe-tcp-receive", daemon=True).start()

    # ---- the event loop's side -------------------------------------------------------------------------------------

    @property
    def problem(self) -> Exception | None:
        """What ended it, once everything before has been taken: PeerError, or an OSError."""
        return None if self._ready else self._problem

    def go(self) -> None:
        """The parent has switched: read."""
        self._may_read.set()

    def take(self) -> list[Frame]:
        """All that is there, in order. Ends the use of what the last call returned."""
        self._release()
        self._told = False  # before looking: what comes after this calls `on_change` again
        frames: list[Frame] = []
        while self._ready:
            frame, slab = self._ready.popleft()
            self._taken.append(slab)
            frames.append(bytes(frame) if isinstance(frame, memoryview) else frame)
        return frames

    def close(self) -> None:
        """End the thread, wherever it is, and the connection."""
        with self._lock:
            self._closed = True
            if self._connection is not None:
                shut_down(self._connection)
        self._may_read.set()
        self._free.put(None)

    def _release(self) -> None:
        taken, self._taken = self._taken, []
        with self._lock:
            for slab in taken:
                slab.users -= 1
                if slab.users == 0 and not slab.open:
                    slab.open = True
                    self._free.put(slab)

    # ---- the thread's ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        connection: socket.socket | None = None
        try:
            connection = self._connect()
            self.connected = True
            self._may_read.wait()
            if not self._closed:
                self._read(connection)
        except (*SOCKET_ERRORS, PeerError, ValueError) as error:  # ValueError: a host or a certificate that is none
            self._problem = error if isinstance(error, PeerError | OSError) else OSError(str(error))
            self._tell()
        finally:
            with self._lock:
                self._connection = None
                if connection is not None:
                    connection.close()

    def _connect(self) -> socket.socket:
        route = self._route
        connection = socket.create_connection((route.host, self._offer.port), CONNECT_S)
        try:
            self._adopt(connection)
            connection.settimeout(HANDSHAKE_S)
            if route.tls is not None:
                connection = _secure(connection, route.tls, route.expected_name)
                self._adopt(connection)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(encode_hello(self._offer.secret))
            connection.settimeout(None)  # from here on the loop's patience counts, and `close` ends it
        except BaseException:
            connection.close()
            raise
        return connection

    def _adopt(self, connection: socket.socket) -> None:
        with self._lock:
            if self._closed:
                raise OSError("not wanted any more")
            self._connection = connection

    def _read(self, connection: socket.socket) -> None:
        head = memoryview(bytearray(HEAD_BYTES))
        slab, used = self._next_slab(), 0
        total = 0
        while slab is not None:
            _fill(connection, head, 0)
            frame = decode_head(head)
            if used + frame.length > BODY_BYTES_MAX:
                self._seal(slab)
                slab, used = self._next_slab(), 0
                if slab is None:
                    return
            body = slab.view[used : used + frame.length]
            used = min(used + max(frame.length, _ROOM_MIN), BODY_BYTES_MAX)
            total += HEAD_BYTES + _fill(connection, body, total)
            received: Frame | memoryview = body
            if frame.kind is FrameKind.CHUNK:
                algorithm = self._algorithm()
                received = ReceivedChunk(frame.index, body, None if algorithm is None else algorithm.once(body))
            with self._lock:
                slab.users += 1
            self._ready.append((received, slab))
            self._tell()

    def _next_slab(self) -> _Slab | None:
        """Waits until one is free. None when the connection was closed."""
        if self._slabs < SLABS and self._free.empty():
            self._slabs += 1
            return _Slab()
        slab = self._free.get()
        return None if self._closed else slab

    def _seal(self, slab: _Slab) -> None:
        """Nothing more comes into it."""
        with self._lock:
            slab.open = False
            if slab.users == 0:
                slab.open = True
                self._free.put(slab)

    def _tell(self) -> None:
        """Wake the loop, unless it has been told and has not looked yet."""
        if self._told:
            return
        self._told = True
        try:
            self._loop.call_soon_threadsafe(self._on_change)
        except RuntimeError:
            return  # the loop is closed: nobody waits


def _secure(connection: socket.socket, tls: Tls, expected_name: str) -> ssl.SSLSocket:
    """Raises SSLError, OSError; the connection is closed then."""
    secured = client_context(tls).wrap_socket(connection)
    if expected_name not in certificate_names(secured):
        secured.close()
        raise OSError(f"the certificate is not that of {expected_name!r}")
    return secured


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
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, lowat_bytes)
    try:
        return connection.recv_into(view)
    finally:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
