"""What the kernel says of a TCP connection, where it says anything (Linux; the fields are in the order of its ABI)."""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
from typing import NamedTuple

_UNANSWERED = struct.Struct("=2xB")
_HEARD, _HEARD_AT = struct.Struct("=I"), 52  # milliseconds since data came
_RTT, _RTT_AT = struct.Struct("=I"), 68  # smoothed, microseconds
_RETRANSMITTED, _RETRANSMITTED_AT = struct.Struct("=I"), 100  # segments
_ACKNOWLEDGED, _ACKNOWLEDGED_AT = struct.Struct("=Q"), 120  # bytes
_MIN_RTT, _MIN_RTT_AT = struct.Struct("=I"), 148  # of late, microseconds
_SENT, _SENT_AT = struct.Struct("=I"), 156  # segments with data, again or not
_BUSY, _BUSY_AT = struct.Struct("=Q"), 168  # microseconds in which something was on its way
_BYTES = 176


class TcpInfo(NamedTuple):
    unanswered: int
    """Timeouts in a row in which nothing was acknowledged of what was sent: 4 are 3 s or more."""
    round_trip_s: float
    round_trip_s_min: float
    segments_sent: int
    segments_again: int
    bytes_acknowledged: int
    silent_s: float
    """Since data came last."""
    busy_s: float
    """How long something was on its way, all in all."""


def tcp_info(connection: socket.socket) -> TcpInfo | None:
    """From any thread; None where the kernel does not say, or for a socket that has been closed."""
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES)
    except (OSError, AttributeError):
        return None
    if len(info) < _BYTES:
        return None
    return TcpInfo(
        _UNANSWERED.unpack_from(info)[0],
        _RTT.unpack_from(info, _RTT_AT)[0] / 1e6,
        _MIN_RTT.unpack_from(info, _MIN_RTT_AT)[0] / 1e6,
        _SENT.unpack_from(info, _SENT_AT)[0],
        _RETRANSMITTED.unpack_from(info, _RETRANSMITTED_AT)[0],
        _ACKNOWLEDGED.unpack_from(info, _ACKNOWLEDGED_AT)[0],
        _HEARD.unpack_from(info, _HEARD_AT)[0] / 1e3,
        _BUSY.unpack_from(info, _BUSY_AT)[0] / 1e6,
    )


def unacknowledged_bytes(connection: socket.socket) -> int | None:
    """Of what the kernel has been given."""
    try:
        return int(struct.unpack("i", fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4)))[0])
    except (OSError, ValueError):  # closed meanwhile
        return None


def choose_congestion_control(connection: socket.socket, name: str) -> bool:
    """From now on, also of one that is open. False where the kernel has no such one, or does not let this process."""
    option = getattr(socket, "TCP_CONGESTION", None)
    if option is None:
        return False
    try:
        connection.setsockopt(socket.IPPROTO_TCP, option, name.encode("ascii"))
    except OSError:
        return False
    return True


def congestion_control(connection: socket.socket) -> str:
    """Its name; empty where the kernel does not say."""
    option = getattr(socket, "TCP_CONGESTION", None)
    if option is None:
        return ""
    try:
        return connection.getsockopt(socket.IPPROTO_TCP, option, 16).rstrip(b"\0").decode("ascii")
    except OSError:
        return ""
