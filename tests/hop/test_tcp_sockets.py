"""Options of data connections, on real sockets."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from chappe.hop import tcp_sockets
from chappe.hop.tcp_receive import _fill, _lowat_bytes
from chappe.hop.tcp_sockets import UNACKNOWLEDGED_BYTES_MAX, allow_unacknowledged, limit_pace, shut_down


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one:
        other, _ = server.accept()
        with other:
            yield one, other


def send_buffer(connection: socket.socket) -> int:
    return connection.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)


def limits(monkeypatch: pytest.MonkeyPatch, core: int, tcp: int) -> None:
    found = {"core/wmem_max": core, "ipv4/tcp_wmem": tcp}
    monkeypatch.setattr(tcp_sockets, "_limit", found.__getitem__)
    monkeypatch.setattr(tcp_sockets, "_SO_SNDBUFFORCE", 99)  # no such option: as if it were not allowed


def test_a_sender_may_have_more_on_its_way_where_the_machine_allows_it(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = send_buffer(pair[0])
    if 2 * tcp_sockets._limit("core/wmem_max") <= before:
        pytest.skip("this machine's net.core.wmem_max allows no larger send buffer than it gives by itself")
    limits(monkeypatch, 4 << 20, 4 << 20)
    allow_unacknowledged(pair[0])
    assert before < send_buffer(pair[0]) <= UNACKNOWLEDGED_BYTES_MAX


@pytest.mark.parametrize("core", [212_992, 2 << 20])
def test_a_size_of_its_own_is_not_less_than_what_tcp_would_take(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch, core: int
) -> None:
    before = send_buffer(pair[0])
    limits(monkeypatch, core, 4 << 20)
    allow_unacknowledged(pair[0])
    assert send_buffer(pair[0]) == before


def test_a_pace_is_set_and_taken_back(pair: tuple[socket.socket, socket.socket]) -> None:
    def pace() -> int:
        return pair[0].getsockopt(socket.SOL_SOCKET, tcp_sockets._SO_MAX_PACING_RATE)

    before = pace()
    limit_pace(pair[0], 1.5e6)
    assert pace() == 1_500_000
    limit_pace(pair[0], None)
    assert pace() & 0xFFFFFFFF == before & 0xFFFFFFFF


def test_little_is_gathered_at_the_beginning_and_a_chunk_later() -> None:
    assert _lowat_bytes(0, 64 << 10) == 0
    assert _lowat_bytes(64 << 10, 64 << 10) == 4 << 10
    assert _lowat_bytes(1 << 20, 64 << 10) == 64 << 10
    assert _lowat_bytes(1 << 40, 2 << 20) == 256 << 10  # never so much that it closes a window


def test_all_of_a_body_is_read_in_whatever_pieces_it_comes(pair: tuple[socket.socket, socket.socket]) -> None:
    body = bytes(range(256)) * 4096
    got = bytearray(len(body))
    pair[0].settimeout(30)
    pair[1].settimeout(30)
    sent = 0
    for size in (1, 5_000, 70_000):
        pair[0].sendall(body[sent : sent + size])
        assert _fill(pair[1], memoryview(got)[sent : sent + size], sent) == size
        sent += size
    assert got[:sent] == body[:sent]
    pair[0].close()
    with pytest.raises(OSError, match="closed the data connection"):
        _fill(pair[1], memoryview(got)[:10], 1 << 20)


class Racing(socket.socket):
    """What comes between the look at the socket and the wait for it: half of the body, and the rest while it waits."""

    def race(self, peer: socket.socket, body: bytes) -> None:
        self.peer, self.body = peer, body
        self.sending: threading.Thread | None = None

    def recv_into(self, buffer: memoryview, nbytes: int = 0, flags: int = 0) -> int:
        if flags & socket.MSG_DONTWAIT and self.sending is None:
            half = len(self.body) // 2
            self.peer.sendall(self.body[:half])
            self.sending = threading.Thread(target=self.peer.sendall, args=(self.body[half:],))
            self.sending.start()
            raise BlockingIOError
        return super().recv_into(buffer, nbytes, flags)


def test_a_body_that_begins_to_come_in_the_wrong_moment_is_not_waited_for_twice(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """The parent has nothing more to say for now: nobody would wake the thread."""
    body = bytes(64 << 10)
    got = bytearray(len(body))
    racing = Racing(fileno=os.dup(pair[1].fileno()))
    racing.race(pair[0], body)
    with racing:
        reading = threading.Thread(target=_fill, args=(racing, memoryview(got), 1 << 40), daemon=True)
        reading.start()
        reading.join(30)
        stuck = reading.is_alive()
        shut_down(pair[1])  # ends it in any case
        reading.join(30)
    assert not stuck
