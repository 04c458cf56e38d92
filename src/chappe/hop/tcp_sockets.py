"""Sockets of data connections: their options, their TLS, and steps that do not block an event loop.

TLS is mutual, with the fleet's CA, and the name that counts is the worker's, as on gRPC: it must stand in the other
side's certificate. The caller compares; no address is.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from chappe.hop.net import Tls
from chappe.sigpipe import without_sigpipe

T = TypeVar("T")

SOCKET_ERRORS = (OSError, ssl.SSLError)
UNSENT_BYTES_MIN = 16 << 10
UNSENT_BYTES_MAX = 4 << 20
UNACKNOWLEDGED_BYTES_MAX = 32 << 20
"""As the kernel counts, with its own overhead: about 1 Gbit/s at a round trip of 60 ms, with a loss in it."""
_SO_SNDBUFFORCE, _SO_MAX_PACING_RATE = 32, 47  # Linux; Python has no names for them
_NO_PACE, _PACE_MAX = -1, (1 << 31) - 1


def server_context(tls: Tls) -> ssl.SSLContext:
    """Of the side that is dialled. Asks for the caller's certificate."""
    return _context(ssl.PROTOCOL_TLS_SERVER, tls)


def client_context(tls: Tls) -> ssl.SSLContext:
    """Of the side that dials."""
    return _context(ssl.PROTOCOL_TLS_CLIENT, tls)


def _context(protocol: int, tls: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.check_hostname = False  # names are those of workers, compared by the caller with `certificate_names`
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=tls.ca.decode("ascii"))
    # OpenSSL's binding reads them from files only: one that has no name and is never on a disk.
    with os.fdopen(os.memfd_create("chappe-tls"), "w+b") as file:
        file.write(tls.cert + b"\n" + tls.key)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    return context


def certificate_names(connection: ssl.SSLSocket) -> set[str]:
    """The names in the other side's verified certificate."""
    encoded = connection.getpeercert(binary_form=True)
    if encoded is None:
        return set()
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    certificate = x509.load_der_x509_certificate(encoded)
    names = {str(name.value) for name in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)}
    try:
        also = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return names
    return names | set(also.get_values_for_type(x509.DNSName))


def check_name(connection: ssl.SSLSocket, expected_name: str) -> None:
    """Raises OSError when the other side is not who it should be."""
    if expected_name not in certificate_names(connection):
        raise OSError(f"the certificate is not that of {expected_name!r}")


def set_unsent_limit(connection: socket.socket, size_bytes: int) -> None:
    """How much may wait in the kernel that has not been sent: what a child that is moved would wait behind."""
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    if option is not None:
        size_bytes = max(UNSENT_BYTES_MIN, min(size_bytes, UNSENT_BYTES_MAX))
        connection.setsockopt(socket.IPPROTO_TCP, option, size_bytes)


def limit_pace(connection: socket.socket, bytes_per_s: float | None) -> None:
    """Send no faster than this; None: as fast as may be. Raises OSError where there is no such option."""
    pace = _NO_PACE if bytes_per_s is None else max(1, min(int(bytes_per_s), _PACE_MAX))
    connection.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, pace)


def allow_unacknowledged(connection: socket.socket) -> None:
    """Let more be on its way than TCP would by itself (`tcp_wmem`), where the machine's limits allow it.

    A lost packet keeps all that was sent after it in the buffer for a round trip: without room for that, one loss stops
    the sender. How much waits unsent is another matter: `set_unsent_limit`.
    """
    for option in (_SO_SNDBUFFORCE, socket.SO_SNDBUF):
        try:
            most = _limit("ipv4/tcp_wmem")
            if option == socket.SO_SNDBUF and 2 * _limit("core/wmem_max") <= most:
                return  # a size of one's own choice would be a smaller one
            connection.setsockopt(socket.SOL_SOCKET, option, UNACKNOWLEDGED_BYTES_MAX // 2)  # the kernel doubles it
        except OSError:
            continue  # not allowed to, or no Linux
        return


def _limit(name: str) -> int:
    """The last number of a setting of the network. Raises OSError."""
    return int(Path("/proc/sys/net", name).read_text(encoding="ascii").split()[-1])


def shut_down(connection: socket.socket) -> None:
    """Wake whoever blocks on it, from any thread. What was sent still leaves. Once or often."""
    try:
        # Not SSLSocket's own: it forgets its TLS first, and a thread that writes meanwhile would write in the clear.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
    except OSError:
        return  # it is closed, or was never connected


async def step(connection: socket.socket, call: Callable[[], T]) -> T:
    """The result of a call on a non-blocking socket, when it can be had. Raises what it raises otherwise."""
    while True:
        try:
            with without_sigpipe():
                return call()
        except (BlockingIOError, ssl.SSLWantReadError):
            await _ready(connection, writing=False)
        except ssl.SSLWantWriteError:
            await _ready(connection, writing=True)


async def _ready(connection: socket.socket, *, writing: bool) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    add, remove = (loop.add_writer, loop.remove_writer) if writing else (loop.add_reader, loop.remove_reader)
    descriptor = connection.fileno()
    add(descriptor, lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        remove(descriptor)
