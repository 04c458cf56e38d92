"""What an assignment carries: the whole desired state, and a token for each edge that it allows."""

from __future__ import annotations

from chappe.coordinator.assignments import encode_assignment, encode_probe
from chappe.core import effects as fx
from chappe.v1 import coordinator_pb2 as pb
from chappe.v1 import relay_pb2
from chappe.wire.token import TokenKey, verify

OBJECT = "0" * 32
ROOT = "xxh3_128:" + "ab" * 16


def test_an_assignment_carries_a_token_for_each_edge_it_allows() -> None:
    key = TokenKey.generate()
    parent, other, child = (fx.PeerRef(w, w.upper(), f"{w}:1", 7402) for w in ("p", "f", "c"))
    edge = fx.Edge(
        OBJECT,
        stripe=0,
        epoch=11,
        parent=parent,
        slot=2,
        fallbacks=(fx.FallbackParent(other, slot=1, epoch=12),),
        children=(fx.ChildSlot(child, slot=0, generation=6, epoch=13),),
    )
    target = fx.Target(OBJECT, 4, ROOT, "full", 10, 11)
    assign = fx.Assign("me", 7, 5, epoch=14, targets=(target,), edges=(edge,), keep_versions=(3, 4))
    message = encode_assignment(assign, "run", key.sign).assignment

    assert (message.epoch, list(message.keep_versions)) == (14, [3, 4])
    assert message.targets[0] == pb.Target(
        object_id=OBJECT,
        version=4,
        root=ROOT,
        kind=relay_pb2.OBJECT_KIND_FULL,
        payload_bytes=10,
        snapshot_bytes=11,
    )
    sent = message.edges[0]
    assert (sent.parent.address, sent.parent.data_port) == ("p:1", 7402)
    assert (sent.dialer, sent.epoch) == (pb.DIALER_CHILD, 11)
    common = {"run": "run", "object_id": OBJECT, "stripe": 0}
    assert verify(key.public_bytes(), sent.token) == relay_pb2.EdgeClaims(
        **common, slot=2, parent="p", child="me", child_generation=5, epoch=11
    )
    assert verify(key.public_bytes(), sent.fallbacks[0].token) == relay_pb2.EdgeClaims(
        **common, slot=1, parent="f", child="me", child_generation=5, epoch=12, fallback=True
    )
    assert verify(key.public_bytes(), sent.children[0].token) == relay_pb2.EdgeClaims(
        **common, slot=0, parent="me", child="c", child_generation=6, epoch=13
    )


def test_an_edge_without_a_parent_has_no_token() -> None:
    assign = fx.Assign("me", 7, 5, 14, (), (fx.Edge(OBJECT, 0, 11, None),))
    edge = encode_assignment(assign, "run", TokenKey.generate().sign).assignment.edges[0]
    assert not edge.HasField("parent")
    assert not edge.HasField("token")


def test_who_dials_and_what_is_expected_of_the_hop() -> None:
    parent, child = fx.PeerRef("p", "P", "p:1"), fx.PeerRef("c", "C", "c:1")
    slot = fx.ChildSlot(child, slot=0, generation=6, epoch=13, dialer=fx.Dialer.PARENT)
    edge = fx.Edge(OBJECT, 0, 11, parent, children=(slot,), dialer=fx.Dialer.PARENT, expected_bytes_per_s=5e6)
    sent = encode_assignment(fx.Assign("me", 7, 5, 14, (), (edge,)), "run", TokenKey.generate().sign).assignment.edges[
        0
    ]
    assert (sent.dialer, sent.expected_bytes_per_s) == (pb.DIALER_PARENT, 5e6)
    assert sent.children[0].dialer == pb.DIALER_PARENT


def test_a_probe_order_carries_a_token_that_names_no_object() -> None:
    key = TokenKey.generate()
    order = fx.StartProbe("me", 7, 5, "probe-9", fx.PeerRef("p", "P", "p:1"), 9, 8 << 20, 2.0)
    sent = encode_probe(order, "run", key.sign).probe
    assert (sent.order, sent.peer.address, sent.bytes_max, sent.seconds_max) == ("probe-9", "p:1", 8 << 20, 2.0)
    assert verify(key.public_bytes(), sent.token) == relay_pb2.EdgeClaims(
        run="run", parent="p", child="me", child_generation=5, epoch=9
    )
