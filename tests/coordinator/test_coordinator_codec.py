"""What a node may say on Join, and what an assignment carries. Everything that cannot be true is refused by name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappe.coordinator import codec
from chappe.core import events
from chappe.core.ranges import RangeSet
from chappe.core.reasons import ParentLossReason
from chappe.errors import PeerError
from chappe.v1 import coordinator_pb2 as pb
from chappe.v1 import relay_pb2

OBJECT = "0" * 32
ROOT = "xxh3_128:" + "ab" * 16


def hello(**changes: object) -> pb.Hello:
    message = pb.Hello(
        protocol_version=1,
        role=pb.ROLE_RELAY,
        worker_id="w1",
        name="relay-1",
        generation=3,
        address="10.0.0.1:7401",
        uplink_bytes_per_s=1e6,
    )
    for key, value in changes.items():
        setattr(message, key, value)
    return message


RELAY = codec.decode_hello(hello(), 7)
ORIGIN = codec.decode_hello(hello(role=pb.ROLE_ORIGIN, worker_id="o1", name="origin"), 8)


def test_hello_is_decoded_whole() -> None:
    message = hello(downlink_bytes_per_s=2e6, price_per_hour=0.5, rollouts_per_second=3.0, assignment_epoch=9)
    message.data_port, message.stripes = 7402, True
    message.holdings.add(
        object_id=OBJECT,
        version=4,
        root=ROOT,
        state=pb.OBJECT_STATE_VERIFIED,
        chunks=[relay_pb2.Range(start=0, stop=3), relay_pb2.Range(start=5, stop=6)],
        chunks_total=6,
        reason="ok",
    )
    message.edges.add(object_id=OBJECT, stripe=0, parent="o1", epoch=8)
    assert codec.decode_hello(message, 7) == events.Hello(
        worker_id="w1",
        session=7,
        role=events.Role.RELAY,
        name="relay-1",
        generation=3,
        address="10.0.0.1:7401",
        uplink_bytes_per_s=1e6,
        downlink_bytes_per_s=2e6,
        price_per_hour=0.5,
        rollouts_per_second=3.0,
        holdings=(events.Holding(OBJECT, events.ObjectState.VERIFIED, 4, ROOT, ((0, 3), (5, 6)), 6, "ok"),),
        edges=(events.HeldEdge(OBJECT, 0, "o1", 8),),
        assignment_epoch=9,
        data_port=7402,
    )
    bare = codec.decode_hello(hello(uplink_bytes_per_s=0), 1)
    assert bare.uplink_bytes_per_s is None
    assert not bare.stripes, "a release that knows them says so"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"role": 0}, "neither relay nor origin"),
        ({"role": 9}, "neither relay nor origin"),
        ({"name": ""}, "name ''"),
        ({"name": "a b"}, "name 'a b'"),
        ({"name": "-x"}, "name '-x'"),
        ({"name": "x" * 254}, "at most 253"),
        ({"worker_id": ""}, "worker_id '' is not an identifier"),
        ({"worker_id": "a/b"}, "worker_id"),
        ({"address": "nowhere"}, "is not HOST:PORT"),
        ({"generation": 0}, "generation"),
        ({"data_port": 65536}, "data_port 65536"),
        ({"uplink_bytes_per_s": float("nan")}, "uplink_bytes_per_s nan"),
        ({"uplink_bytes_per_s": -1.0}, "uplink_bytes_per_s -1"),
        ({"downlink_bytes_per_s": float("inf")}, "downlink_bytes_per_s inf"),
        ({"price_per_hour": float("inf")}, "price_per_hour"),
    ],
)
def test_a_hello_that_cannot_be_true_names_its_field(changes: dict[str, object], message: str) -> None:
    with pytest.raises(PeerError, match=message):
        codec.decode_hello(hello(**changes), 1)


def holding(**changes: object) -> pb.Holding:
    ranges = [relay_pb2.Range(start=a, stop=b) for a, b in changes.pop("chunks", [])]  # type: ignore[attr-defined]
    return pb.Holding(**({"object_id": OBJECT, "state": pb.OBJECT_STATE_RECEIVING} | changes), chunks=ranges)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"state": 0}, "state 0"),
        ({"state": 99}, "state 99"),
        ({"object_id": "../x"}, "object_id"),
        ({"root": "xxh3_128"}, "is not a root"),
        ({"chunks": [(3, 3)]}, "not the next range"),
        ({"chunks": [(4, 6), (5, 7)]}, "not the next range"),
        ({"chunks": [(4, 6), (0, 2)]}, "not the next range"),
        ({"chunks": [(0, 1 << 41)]}, "not the next range"),
        ({"chunks": [(0, 5)], "chunks_total": 4}, "has 4 chunks"),
        ({"chunks_total": 1 << 50}, "chunks"),
    ],
)
def test_a_holding_that_cannot_be_true_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(PeerError, match=message):
        codec.decode_holding(holding(**changes))


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 9))))
def test_any_range_set_of_ours_is_taken_as_it_is(pairs: list[tuple[int, int]]) -> None:
    held = RangeSet((start, start + length) for start, length in pairs)
    assert codec.decode_holding(holding(chunks=list(held))).chunks == tuple(held)


def test_a_long_reason_is_cut() -> None:
    assert len(codec.decode_holding(holding(reason="x" * 100_000)).reason) == 2000


JOIN_CASES = [
    (RELAY, pb.JoinRequest(heartbeat=pb.Heartbeat()), None),
    (RELAY, pb.JoinRequest(acknowledge=pb.Acknowledge(epoch=5)), events.Acknowledged("w1", 7, 5)),
    (
        RELAY,
        pb.JoinRequest(holding=pb.HoldingChanged(holding=holding(chunks=[(0, 2)], chunks_total=2))),
        events.HoldingChanged(
            "w1", 7, events.Holding(OBJECT, events.ObjectState.RECEIVING, chunks=((0, 2),), chunks_total=2)
        ),
    ),
    (
        RELAY,
        pb.JoinRequest(parent_connected=pb.ParentConnected(object_id=OBJECT, parent="o1", epoch=4)),
        events.ParentConnected("w1", 7, events.HeldEdge(OBJECT, 0, "o1", 4)),
    ),
    (
        RELAY,
        pb.JoinRequest(parent_lost=pb.ParentLost(object_id=OBJECT, parent="o1", epoch=4, reason="stalled")),
        events.ParentLost("w1", 7, events.HeldEdge(OBJECT, 0, "o1", 4), ParentLossReason.STALLED),
    ),
    (
        RELAY,
        pb.JoinRequest(
            links=pb.LinkReport(
                samples=[
                    pb.LinkSample(peer="o1", bytes_per_s=5e6, busy_s=1.5, bytes=7_500_000, streams=1, tcp=True),
                    pb.LinkSample(peer="w2", sending=True, bytes_per_s=4e6, busy_s=2.0),
                    pb.LinkSample(peer="w3", sending=True, bytes_per_s=0.0, busy_s=2.0),
                    pb.LinkSample(peer="w3", sending=True, bytes=900),  # it always caught up with its source
                ]
            )
        ),
        events.LinksMeasured(
            "w1",
            7,
            (
                events.LinkSample("o1", False, 5e6, 1.5, 1, 7_500_000, True),
                events.LinkSample("w2", True, 4e6, 2.0),
                events.LinkSample("w3", True, 0.0, 2.0),
                events.LinkSample("w3", True, 0.0, 0.0, 1, 900),
            ),
        ),
    ),
    (
        RELAY,
        pb.JoinRequest(probe_result=pb.ProbeResult(order="probe-7", up_bytes_per_s=5e6, bytes=8_000_000, seconds=1.6)),
        events.ProbeEnded("w1", 7, "probe-7", 5e6, None, 1.6),
    ),
    (
        ORIGIN,
        pb.JoinRequest(probe_result=pb.ProbeResult(order="probe-7", error="x" * 3000)),
        events.ProbeEnded("o1", 8, "probe-7", None, None, 0.0, "x" * 2000),
    ),
    (
        RELAY,
        pb.JoinRequest(rollouts=pb.RolloutRate(rollouts_per_second=0.33)),
        events.RolloutsReported("w1", 7, 0.33),
    ),
    (
        ORIGIN,
        pb.JoinRequest(learner=pb.LearnerProgress(version=9, admitted=40, discarded=2)),
        events.LearnerMoved("o1", 8, 9, 40, 2),
    ),
    (RELAY, pb.JoinRequest(leaving=pb.Leaving()), events.LeaveRequested("w1", 7)),
    (
        ORIGIN,
        pb.JoinRequest(
            offer=pb.Offer(
                object_id=OBJECT,
                version=2,
                kind=relay_pb2.OBJECT_KIND_FULL,
                payload_bytes=10,
                snapshot_bytes=11,
                chunks_total=1,
            )
        ),
        events.Offered("o1", 8, OBJECT, 2, "full", 10, 11, 1),
    ),
    (
        ORIGIN,
        pb.JoinRequest(root=pb.RootAnnounced(object_id=OBJECT, root=ROOT)),
        events.RootAnnounced("o1", 8, OBJECT, ROOT),
    ),
    (
        ORIGIN,
        pb.JoinRequest(source_failed=pb.SourceFailed(object_id=OBJECT, reason="changed")),
        events.SourceFailed("o1", 8, OBJECT, "changed"),
    ),
]


@pytest.mark.parametrize(("who", "message", "event"), JOIN_CASES, ids=lambda value: type(value).__name__)
def test_every_message_becomes_its_event(who: events.Hello, message: pb.JoinRequest, event: events.Event) -> None:
    assert codec.decode_join(message, who) == event


def test_every_message_of_the_protocol_has_a_case() -> None:
    known = {str(message.WhichOneof("message")) for _, message, _ in JOIN_CASES} | {"hello"}
    assert known == {field.name for field in pb.JoinRequest.DESCRIPTOR.oneofs_by_name["message"].fields}


def report(**sample: object) -> pb.JoinRequest:
    return pb.JoinRequest(links=pb.LinkReport(samples=[pb.LinkSample(**sample)]))


def test_a_report_of_too_many_samples_is_refused() -> None:
    many = pb.LinkReport(samples=[pb.LinkSample(peer="w2", bytes_per_s=1, busy_s=1)] * 65_537)
    with pytest.raises(PeerError, match="too many"):
        codec.decode_join(pb.JoinRequest(links=many), RELAY)


def test_a_node_may_declare_that_it_cannot_be_dialled() -> None:
    assert codec.decode_hello(hello(dialable=pb.DIALABLE_NO), 1).no_dial_in
    assert not codec.decode_hello(hello(), 1).no_dial_in


@pytest.mark.parametrize(
    ("who", "message", "error"),
    [
        (RELAY, pb.JoinRequest(), "empty or unknown"),
        (RELAY, pb.JoinRequest(hello=hello()), "second Hello"),
        (RELAY, JOIN_CASES[-1][1], "relay relay-1 may not send 'source_failed'"),
        (RELAY, JOIN_CASES[-3][1], "may not send 'offer'"),
        (ORIGIN, JOIN_CASES[3][1], "origin origin may not send 'parent_connected'"),
        (RELAY, pb.JoinRequest(parent_lost=pb.ParentLost(object_id=OBJECT, parent="p", reason="mood")), "'mood'"),
        (ORIGIN, pb.JoinRequest(offer=pb.Offer(object_id=OBJECT)), "kind 0"),
        (RELAY, pb.JoinRequest(rollouts=pb.RolloutRate(rollouts_per_second=-1)), "zero or more"),
        (RELAY, pb.JoinRequest(rollouts=pb.RolloutRate(rollouts_per_second=float("nan"))), "zero or more"),
        (ORIGIN, pb.JoinRequest(rollouts=pb.RolloutRate(rollouts_per_second=1)), "may not send 'rollouts'"),
        (RELAY, pb.JoinRequest(learner=pb.LearnerProgress(version=1)), "may not send 'learner'"),
        (ORIGIN, pb.JoinRequest(learner=pb.LearnerProgress(version=1 << 63)), "out of range"),
        (RELAY, report(peer="w2", bytes_per_s=float("inf"), busy_s=1), "is not a rate"),
        (RELAY, report(peer="w2", bytes_per_s=-1, busy_s=1), "is not a rate"),
        (RELAY, report(peer="w2", bytes_per_s=1e15, busy_s=1), "is not a rate"),
        (RELAY, report(peer="w2", bytes_per_s=1, busy_s=float("nan")), "is not a duration"),
        (RELAY, report(peer="w2", bytes_per_s=1, busy_s=1e9), "is not a duration"),
        (RELAY, report(peer="", bytes_per_s=1, busy_s=1), "peer"),
        (RELAY, pb.JoinRequest(probe_result=pb.ProbeResult(order="")), "order"),
        (ORIGIN, pb.JoinRequest(root=pb.RootAnnounced(object_id=OBJECT, root="")), "is not a root"),
    ],
)
def test_messages_that_may_not_be_sent(who: events.Hello, message: pb.JoinRequest, error: str) -> None:
    with pytest.raises(PeerError, match=error):
        codec.decode_join(message, who)


def test_publish_defaults_and_bounds() -> None:
    request = pb.PublishRequest(origin_id="o1", object_id=OBJECT, until=1.0, snapshot_bytes=5, elapsed_s=0.25)
    assert codec.decode_publish(request, 3) == events.PublishRequested(
        3, "o1", OBJECT, 0, 1.0, events.Topology.CHAINS, 0, 5, 0.25
    )
    for field, value in [
        ("until", 0.0),
        ("until", 1.5),
        ("until", float("nan")),
        ("elapsed_s", -1.0),
        ("topology", 7),
        ("t_train_s", -1),
    ]:
        broken = pb.PublishRequest()
        broken.CopyFrom(request)
        setattr(broken, field, value)
        with pytest.raises(PeerError, match=field):
            codec.decode_publish(broken, 3)
