from __future__ import annotations

import pytest

from chappe.core.effects import ChildSlot, PeerRef, Target
from chappe.core.events import HeldEdge, Holding, LinkSample, ObjectState
from chappe.core.probes import ProbeOrder, ProbeOutcome
from chappe.core.reasons import ParentLossReason
from chappe.core.relay_events import (
    Acknowledge,
    AskToLeave,
    Assigned,
    Assignment,
    EdgeOrder,
    PushOrder,
    Released,
    ReportConnected,
    ReportHolding,
    ReportLost,
    Source,
)
from chappe.errors import PeerError
from chappe.v1 import coordinator_pb2 as pb
from chappe.v1 import relay_pb2
from chappe.wire.relay_messages import (
    RANGES_MAX,
    LinkReport,
    Node,
    Refusal,
    Report,
    Welcomed,
    decode_reply,
    encode_hello,
    encode_report,
    report_key,
)

A = "a" * 32
EDGE = HeldEdge(A, 1, "id-p", 7)
HOLDING = Holding(A, ObjectState.INSTALLED, 3, "xxh3_128:00", ((0, 2), (5, 8)), 9, "why")


def _assignment() -> pb.Assignment:
    token = relay_pb2.EdgeToken(claims=b"claims", signature=b"signature")
    peer = pb.Peer(worker_id="id-p", name="p", address="p:1")
    other = pb.Peer(worker_id="id-f", name="f", address="f:1")
    child = pb.Peer(worker_id="id-c", name="c", address="c:1")
    return pb.Assignment(
        epoch=9,
        targets=[
            pb.Target(
                object_id=A, version=3, root="r", kind=relay_pb2.OBJECT_KIND_FULL, payload_bytes=5, snapshot_bytes=6
            )
        ],
        edges=[
            pb.Edge(
                object_id=A,
                stripe=1,
                parent=peer,
                dialer=pb.DIALER_CHILD,
                token=token,
                fallbacks=[pb.Fallback(parent=other, token=token)],
                children=[pb.ChildSlot(child=child, slot=0, generation=2, epoch=4)],
                epoch=7,
            )
        ],
        keep_versions=[3, 2],
    )


def test_an_assignment_arrives_as_it_was_meant() -> None:
    token = _assignment().edges[0].token.SerializeToString()
    expected = Assignment(
        9,
        (Target(A, 3, "r", "full", 5, 6),),
        (
            EdgeOrder(
                A,
                1,
                7,
                Source(PeerRef("id-p", "p", "p:1"), token),
                (Source(PeerRef("id-f", "f", "f:1"), token),),
                (ChildSlot(PeerRef("id-c", "c", "c:1"), 0, 2, 4),),
            ),
        ),
        (3, 2),
    )
    assert decode_reply(pb.JoinReply(assignment=_assignment())) == Assigned(expected)


def test_where_a_peer_takes_data_connections_makes_it_no_other_peer() -> None:
    """A fetch that runs is not begun again when the coordinator has come to know it, or has forgotten it."""
    message = _assignment()
    message.edges[0].parent.data_port = 7402
    decoded = decode_reply(pb.JoinReply(assignment=message))
    assert isinstance(decoded, Assigned)
    assert decoded == decode_reply(pb.JoinReply(assignment=_assignment()))
    parent = decoded.assignment.edges[0].parent
    assert parent is not None
    assert parent.peer.data_port == 7402


def test_an_edge_without_a_parent_means_wait() -> None:
    message = _assignment()
    message.edges[0].ClearField("parent")
    decoded = decode_reply(pb.JoinReply(assignment=message))
    assert isinstance(decoded, Assigned)
    assert decoded.assignment.edges[0].parent is None
    assert decoded.assignment.edges[0].sources == ()


def test_edges_on_which_the_parent_dials() -> None:
    message = _assignment()
    message.edges[0].dialer = pb.DIALER_PARENT
    message.edges[0].expected_bytes_per_s = 5e6
    message.edges[0].children[0].dialer = pb.DIALER_PARENT
    introduction = relay_pb2.EdgeToken(claims=b"i", signature=b"s")
    message.edges[0].children[0].token.CopyFrom(introduction)
    decoded = decode_reply(pb.JoinReply(assignment=message))
    assert isinstance(decoded, Assigned)
    (order,) = decoded.assignment.edges
    assert order.parent is not None
    assert order.parent.dials
    assert not any(source.dials for source in order.fallbacks)
    assert order.expected_bytes_per_s == 5e6
    assert order.pushes == (PushOrder(PeerRef("id-c", "c", "c:1"), 0, 2, 4, introduction.SerializeToString()),)


def test_a_probe_is_ordered_and_answered() -> None:
    token = relay_pb2.EdgeToken(claims=b"c", signature=b"s")
    order = pb.ProbeOrder(
        order="o", peer=pb.Peer(worker_id="w", name="p", address="p:1"), token=token, bytes_max=8, seconds_max=2.0
    )
    expected = ProbeOrder("o", PeerRef("w", "p", "p:1"), token.SerializeToString(), 8, 2.0)
    assert decode_reply(pb.JoinReply(probe=order)) == expected
    outcome = ProbeOutcome("o", 1.0, 2.0, 3, 4.0)
    sent = encode_report(outcome).probe_result
    assert (sent.order, sent.up_bytes_per_s, sent.down_bytes_per_s, sent.bytes, sent.seconds) == ("o", 1, 2, 3, 4)
    assert report_key(outcome) != report_key(ProbeOutcome("other"))


def test_a_link_report_says_all_of_each_sample() -> None:
    sample = LinkSample("w", sending=True, bytes_per_s=2.0, busy_s=1.5, streams=3, bytes=9, tcp=True)
    (sent,) = encode_report(LinkReport((sample,))).links.samples
    assert (sent.peer, sent.sending, sent.bytes_per_s, sent.busy_s, sent.streams, sent.bytes, sent.tcp) == (
        "w",
        True,
        2.0,
        1.5,
        3,
        9,
        True,
    )


def test_other_replies() -> None:
    welcome = pb.Welcome(run="r", token_key=b"k", lease_s=5, heartbeat_s=1)
    assert decode_reply(pb.JoinReply(welcome=welcome)) == Welcomed("r", b"k", 5, 1)
    assert decode_reply(pb.JoinReply(refused=pb.Refused(reason="no"))) == Refusal("no")
    assert decode_reply(pb.JoinReply(released=pb.Released())) == Released()


def _broken() -> dict[str, pb.JoinReply]:
    replies: dict[str, pb.JoinReply] = {}
    for name in (
        "traversal",
        "short id",
        "version",
        "kind",
        "twice",
        "two parents",
        "expected",
        "nameless",
        "port",
        "edge id",
    ):
        message = _assignment()
        match name:
            case "traversal":
                message.targets[0].object_id = "../" * 10 + "xx"
            case "short id":
                message.targets[0].object_id = "a"
            case "version":
                message.targets[0].version = 0
            case "kind":
                message.targets[0].kind = relay_pb2.OBJECT_KIND_UNSPECIFIED
            case "twice":
                message.targets.append(message.targets[0])
            case "two parents":
                message.edges.append(message.edges[0])
            case "expected":
                message.edges[0].expected_bytes_per_s = float("nan")
            case "nameless":
                message.edges[0].parent.name = ""
            case "port":
                message.edges[0].parent.data_port = 65536
            case "edge id":
                message.edges[0].object_id = "A" * 32
        replies[name] = pb.JoinReply(assignment=message)
    replies["empty"] = pb.JoinReply()
    replies["probe"] = pb.JoinReply(probe=pb.ProbeOrder(order="o", bytes_max=1, seconds_max=float("nan")))
    replies["no run"] = pb.JoinReply(welcome=pb.Welcome(token_key=b"k", lease_s=5, heartbeat_s=1))
    replies["no heartbeat"] = pb.JoinReply(welcome=pb.Welcome(run="r", token_key=b"k", lease_s=5))
    replies["nan"] = pb.JoinReply(welcome=pb.Welcome(run="r", token_key=b"k", lease_s=float("nan"), heartbeat_s=1))
    return replies


@pytest.mark.parametrize("name", _broken())
def test_what_cannot_be_true_is_refused(name: str) -> None:
    with pytest.raises(PeerError):
        decode_reply(_broken()[name])


def test_hello_says_everything() -> None:
    node = Node("w", "r1", 4, "run", "h:1", 1e6, None, 0.5, 20.0, data_port=7402)
    hello = encode_hello(node, 1, [HOLDING], [EDGE], 12).hello
    assert (hello.protocol_version, hello.role, hello.worker_id, hello.name) == (1, pb.ROLE_RELAY, "w", "r1")
    assert (hello.generation, hello.run, hello.address, hello.assignment_epoch) == (4, "run", "h:1", 12)
    assert (hello.uplink_bytes_per_s, hello.downlink_bytes_per_s) == (1e6, 0.0)
    assert (hello.price_per_hour, hello.rollouts_per_second) == (0.5, 20.0)
    assert hello.data_port == 7402
    assert [(e.object_id, e.stripe, e.parent, e.epoch) for e in hello.edges] == [(A, 1, "id-p", 7)]
    (holding,) = hello.holdings
    assert (holding.object_id, holding.version, holding.root, holding.reason) == (A, 3, "xxh3_128:00", "why")
    assert [(r.start, r.stop) for r in holding.chunks] == [(0, 2), (5, 8)]
    assert (holding.chunks_total, holding.state) == (9, pb.OBJECT_STATE_INSTALLED)


def test_every_state_and_report_has_its_message() -> None:
    for state in ObjectState:
        message = encode_report(ReportHolding(Holding(A, state)))
        assert pb.ObjectState.Name(message.holding.holding.state) == f"OBJECT_STATE_{state.name}"
    assert encode_report(ReportConnected(EDGE)).parent_connected.parent == "id-p"
    assert encode_report(ReportLost(EDGE, ParentLossReason.STALLED)).parent_lost.reason == "stalled"
    assert encode_report(Acknowledge(3)).acknowledge.epoch == 3
    assert encode_report(AskToLeave()).WhichOneof("message") == "leaving"


def test_a_fragmented_holding_stays_a_small_message() -> None:
    chunks = tuple((i, i + 1) for i in range(0, 4 * RANGES_MAX, 2))
    message = encode_report(ReportHolding(Holding(A, ObjectState.RECEIVING, chunks=chunks)))
    assert len(message.holding.holding.chunks) == RANGES_MAX
    assert message.ByteSize() < 1 << 20


def test_newer_reports_replace_older_ones_of_the_same_thing_only() -> None:
    other = HeldEdge(A, 1, "id-q", 8)
    reports: list[Report] = [
        ReportHolding(HOLDING),
        ReportConnected(EDGE),
        ReportConnected(other),
        Acknowledge(1),
        AskToLeave(),
    ]
    assert len({report_key(r) for r in reports}) == len(reports)
    assert report_key(ReportLost(EDGE, ParentLossReason.BUSY)) != report_key(ReportConnected(EDGE))
    assert report_key(ReportHolding(HOLDING)) == report_key(ReportHolding(Holding(A, ObjectState.RECEIVING)))
