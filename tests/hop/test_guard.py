from __future__ import annotations

from typing import Any

import pytest
from fakes import KEY, OBJECT_ID, RUN, token
from hypothesis import given
from hypothesis import strategies as st

from chappe.errors import BadTokenError
from chappe.hop.guard import AssignedChild, EdgeGuard, Refusal, Ticket
from chappe.v1.relay_pb2 import EdgeToken, EndReason
from chappe.wire.token import TokenKey


def make_guard() -> EdgeGuard:
    guard = EdgeGuard("p", stall_timeout_s=5.0)
    guard.set_run(RUN, KEY.public_bytes())
    return guard


def admit(
    guard: EdgeGuard, child: str = "c", now: float = 0.0, name: str | None = None, **edge: Any
) -> Ticket | Refusal:
    return guard.admit(token("p", child, **edge), OBJECT_ID, 0, now, name)


def taken(result: Ticket | Refusal) -> Ticket:
    assert isinstance(result, Ticket), result
    return result


def refused(result: Ticket | Refusal) -> EndReason:
    assert isinstance(result, Refusal), result
    return result.reason


def child(epoch: int, worker_id: str = "c", **changes: Any) -> AssignedChild:
    fields: dict[str, Any] = {
        "object_id": OBJECT_ID,
        "stripe": 0,
        "slot": 0,
        "name": f"{worker_id}-name",
        "generation": 1,
    }
    return AssignedChild(worker_id=worker_id, epoch=epoch, **(fields | changes))


def test_nobody_before_welcome() -> None:
    guard = EdgeGuard("p")
    assert refused(admit(guard)) == EndReason.END_REASON_UNKNOWN_OBJECT
    with pytest.raises(BadTokenError):
        guard.set_run(RUN, b"short")


@pytest.mark.parametrize(
    "edge", [{"run": "x"}, {"parent": "x"}, {"object_id": "x"}, {"stripe": 1}], ids=lambda e: next(iter(e))
)
def test_a_token_for_something_else(edge: dict[str, Any]) -> None:
    signed = KEY.sign(_claims(edge))
    assert refused(make_guard().admit(signed, OBJECT_ID, 0, 0.0)) == EndReason.END_REASON_BAD_TOKEN


def _claims(edge: dict[str, Any]) -> Any:
    from fakes import claims

    return (
        claims("p", "c", **{k: v for k, v in edge.items() if k != "parent"})
        if "parent" not in edge
        else claims("x", "c")
    )


def test_a_token_that_nobody_signed() -> None:
    forged = TokenKey.generate().sign(_claims({}))
    assert refused(make_guard().admit(forged, OBJECT_ID, 0, 0.0)) == EndReason.END_REASON_BAD_TOKEN
    assert refused(make_guard().admit(EdgeToken(), OBJECT_ID, 0, 0.0)) == EndReason.END_REASON_BAD_TOKEN


def test_newer_or_equal_evicts_older_is_stale() -> None:
    guard = make_guard()
    first = taken(admit(guard, "a", epoch=5))
    second = taken(admit(guard, "b", epoch=5))
    assert first.ended_by == EndReason.END_REASON_EVICTED
    third = taken(admit(guard, "c", epoch=6))
    assert second.ended_by == EndReason.END_REASON_EVICTED
    assert refused(admit(guard, "a", epoch=5)) == EndReason.END_REASON_STALE
    assert guard.children() == [third]
    assert third.ended_by is None


def test_slots_and_stripes_are_apart() -> None:
    guard = make_guard()
    tickets = [taken(admit(guard, "a", slot=0)), taken(admit(guard, "b", slot=1))]
    tickets.append(taken(guard.admit(token("p", "c", stripe=1), OBJECT_ID, 1, 0.0)))
    assert [t.ended_by for t in tickets] == [None] * 3


def test_the_assignment_counts_before_its_child_has_come() -> None:
    guard = make_guard()
    guard.assign([child(7)])
    assert refused(admit(guard, "old", epoch=6)) == EndReason.END_REASON_STALE
    taken(admit(guard, "c", epoch=7))
    guard.assign([])
    assert refused(admit(guard, "old", epoch=6)) == EndReason.END_REASON_STALE


def test_an_assignment_does_not_end_a_running_stream() -> None:
    guard = make_guard()
    ticket = taken(admit(guard, "old", epoch=6))
    guard.assign([child(7)])
    assert ticket.ended_by is None


def test_the_certificate_must_be_the_childs() -> None:
    guard = make_guard()
    guard.assign([child(1)])
    assert refused(admit(guard, name="somebody")) == EndReason.END_REASON_BAD_TOKEN
    taken(admit(guard, name="c-name"))


def test_a_child_that_was_started_again() -> None:
    guard = make_guard()
    old = taken(admit(guard, child_generation=2))
    assert refused(admit(guard, child_generation=1)) == EndReason.END_REASON_STALE
    taken(admit(guard, child_generation=3))
    assert old.ended_by == EndReason.END_REASON_EVICTED
    guard.assign([child(9, generation=5)])
    assert refused(admit(guard, epoch=9, child_generation=4)) == EndReason.END_REASON_STALE


def test_a_fallback_takes_a_free_slot_or_a_stalled_ones() -> None:
    guard = make_guard()
    present = taken(admit(guard, "b", epoch=1, now=0.0))
    present.progress(10.0)
    assert refused(admit(guard, "c", epoch=2, fallback=True, now=14.9)) == EndReason.END_REASON_BUSY
    assert present.ended_by is None
    guest = taken(admit(guard, "c", epoch=2, fallback=True, now=15.0))
    assert present.ended_by == EndReason.END_REASON_EVICTED
    # The child of the assignment comes back, with the token it always had.
    taken(admit(guard, "b", epoch=1, now=15.1))
    assert guest.ended_by == EndReason.END_REASON_EVICTED


def test_a_fallback_older_than_the_slot_is_stale() -> None:
    guard = make_guard()
    guard.assign([child(7)])
    assert refused(admit(guard, "x", epoch=6, fallback=True)) == EndReason.END_REASON_STALE


def test_release_and_forget() -> None:
    guard = make_guard()
    first = taken(admit(guard, "a", epoch=5))
    second = taken(admit(guard, "b", epoch=6))
    guard.release(first)  # it was evicted: the slot is not its own any more
    assert guard.children() == [second]
    guard.release(second)
    assert guard.children() == []
    guard.forget(OBJECT_ID)
    taken(admit(guard, "a", epoch=1))


def test_end_all_wakes_the_streams_once() -> None:
    guard = make_guard()
    ticket = taken(admit(guard))
    calls: list[EndReason | None] = []
    ticket.on_end = lambda: calls.append(ticket.ended_by)
    guard.end_all(EndReason.END_REASON_LEAVING)
    ticket.end(EndReason.END_REASON_EVICTED)
    assert calls == [EndReason.END_REASON_LEAVING]


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(1, 4), st.booleans(), st.integers(0, 1), st.floats(0, 20)),
        max_size=12,
    )
)
def test_at_most_one_live_child_in_a_slot_and_epochs_of_regular_children_never_fall(
    arrivals: list[tuple[str, int, bool, int, float]],
) -> None:
    guard = make_guard()
    given_out: list[Ticket] = []
    newest: dict[int, int] = {}
    for who, epoch, fallback, slot, now in sorted(arrivals, key=lambda a: a[4]):
        result = admit(guard, who, now=now, epoch=epoch, fallback=fallback, slot=slot)
        if isinstance(result, Ticket):
            given_out.append(result)
            assert epoch >= newest.get(slot, 0)
            if not fallback:
                newest[slot] = epoch
        live = [t.slot for t in given_out if t.ended_by is None]
        assert len(live) == len(set(live))
        assert sorted(t.slot for t in guard.children()) == sorted(live)


def test_a_child_whose_messages_take_long_has_not_stalled() -> None:
    guard = make_guard()
    slow = taken(admit(guard, "a", epoch=1))
    slow.progress(10.0)
    slow.patience_s = 20.0
    assert refused(admit(guard, "c", epoch=2, fallback=True, now=29.0)) == EndReason.END_REASON_BUSY
    assert slow.ended_by is None
    taken(admit(guard, "c", epoch=2, fallback=True, now=30.0))
    assert slow.ended_by == EndReason.END_REASON_EVICTED


def test_a_probes_token_is_good_for_one_probe_of_this_node_and_nothing_else() -> None:
    guard = make_guard()
    guard.check_probe(token("p", "c", object_id="", epoch=7))
    for changes in ({"epoch": 7}, {"epoch": 6}, {"epoch": 8, "object_id": OBJECT_ID}, {"epoch": 8, "run": "x"}):
        with pytest.raises(BadTokenError):
            guard.check_probe(token("p", "c", **({"object_id": ""} | changes)))
    with pytest.raises(BadTokenError):
        guard.check_probe(token("other", "c", object_id="", epoch=8))
    guard.check_probe(token("p", "c", object_id="", epoch=8))
    guard.check_probe(token("p", "d", object_id="", epoch=1))
    probing = token("p", "c", object_id="", epoch=9)
    assert refused(guard.admit(probing, OBJECT_ID, 0, 0.0)) == EndReason.END_REASON_BAD_TOKEN
