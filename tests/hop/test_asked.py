"""What comes twice, or was not asked for."""

from __future__ import annotations

import pytest
from fakes import MemoryObject, MemoryOrigin, token
from tcp_rig import CHUNK, payload_of

from chappe.errors import PeerError
from chappe.hop import asked as module
from chappe.hop.asked import Asked
from chappe.hop.client import build_request
from chappe.wire.tcp_frames import STREAMS_MAX

MANIFEST = MemoryOrigin(payload_of(20)).manifest


def asked(streams: int) -> Asked:
    request = build_request(MemoryObject(), 0, token("parent", "child"))
    request.streams = streams
    return Asked(request)


def test_on_one_connection_nothing_comes_twice() -> None:
    assert MANIFEST is not None
    one = asked(4)
    assert one.take_chunk(3, CHUNK, MANIFEST, 5)
    assert one.take_page(0, 0)
    with pytest.raises(PeerError, match="chunk 3"):
        one.take_chunk(3, CHUNK, MANIFEST, 5)
    with pytest.raises(PeerError, match="page 0"):
        one.take_page(0, 1)


def test_on_several_a_chunk_comes_again_so_often_as_one_that_broke_may_have_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert MANIFEST is not None
    monkeypatch.setattr(module, "_AGAIN_BYTES_MAX", 2 * CHUNK)
    several = asked(2)
    assert several.more(1)
    assert several.take_chunk(3, CHUNK, MANIFEST, 5)
    assert not several.take_chunk(3, CHUNK, MANIFEST, 5)
    assert not several.take_chunk(3, CHUNK, MANIFEST, 5)
    with pytest.raises(PeerError, match="chunk 3"):
        several.take_chunk(3, CHUNK, MANIFEST, 5)
    with pytest.raises(PeerError, match="chunk 99"):
        several.take_chunk(99, CHUNK, MANIFEST, 5)
    assert several.take_page(0, 0)
    assert not several.take_page(0, 1)  # each connection carries its own
    with pytest.raises(PeerError, match="page 3 before page 1"):
        several.take_page(3, 1)


def test_more_connections_than_can_be_meant() -> None:
    assert not asked(0).more(1)  # it knows of one only
    assert not asked(4).more(0)
    assert not asked(4).more(STREAMS_MAX)
    greedy = asked(4)
    assert greedy.more(STREAMS_MAX - 1)
    assert not greedy.more(1)
