"""A map of stripes from the coordinator's edge to the relay's order: the same at both ends, or refused."""

from __future__ import annotations

import pytest

from chappe.coordinator.assignments import encode_assignment
from chappe.core import effects as fx
from chappe.core.relay_events import Assigned
from chappe.core.stripemap import PLAIN, StripeMap
from chappe.errors import PeerError
from chappe.v1 import coordinator_pb2 as pb
from chappe.wire.relay_messages import decode_reply
from chappe.wire.token import TokenKey

OBJECT = "0123456789abcdef" * 2


def sent(*edges: fx.Edge) -> pb.JoinReply:
    return encode_assignment(fx.Assign("me", 7, 5, 14, (), edges), "run", TokenKey.generate().sign)


def test_it_arrives_as_it_was_meant() -> None:
    stripes = StripeMap((2, 1, 1), 3)
    parent = fx.PeerRef("p", "P", "p:1")
    reply = sent(*(fx.Edge(OBJECT, s, 11, parent, stripes=stripes) for s in range(3)))
    decoded = decode_reply(reply)
    assert isinstance(decoded, Assigned)
    assert [(e.stripe, e.stripes) for e in decoded.assignment.edges] == [(s, stripes) for s in range(3)]


def test_a_plain_chain_says_nothing_of_stripes() -> None:
    reply = sent(fx.Edge(OBJECT, 0, 11, None))
    assert not reply.assignment.edges[0].HasField("stripes")
    decoded = decode_reply(reply)
    assert isinstance(decoded, Assigned)
    assert decoded.assignment.edges[0].stripes == PLAIN


@pytest.mark.parametrize(("weights", "run"), [([1, 1], 1), ([0, 1, 1], 1), ([1, 1, 1], 0), ([], 1)])
def test_a_map_that_cannot_be_is_refused(weights: list[int], run: int) -> None:
    reply = sent(fx.Edge(OBJECT, 2, 11, None, stripes=StripeMap((1, 1, 1))))
    reply.assignment.edges[0].stripes.weights[:] = weights
    reply.assignment.edges[0].stripes.run = run
    with pytest.raises(PeerError, match="stripe"):
        decode_reply(reply)
