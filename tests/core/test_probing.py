"""A fleet of thousands is not sorted for the few probes that are ordered at a time."""

from __future__ import annotations

import pytest

from chappe.core import events as ev
from chappe.core import probing
from chappe.core.effects import StartProbe, WakeAt
from chappe.core.fleet import Fleet, FleetConfig
from chappe.core.probing import AT_ONCE_MAX, LAPSE_S, LOOK_S, SETTLE_S

RELAYS = 40
WINDOW = 16


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Fleet:
    monkeypatch.setattr(probing, "WINDOW", WINDOW)
    fleet = Fleet(FleetConfig("run", lease_s=3600.0))
    for i in range(RELAYS):
        fleet.handle(ev.Hello(f"id-{i:02}", i + 1, ev.Role.RELAY, f"r{i:02}", 1, f"r{i:02}:1", 1e6, 1e6), 1.0)
    return fleet


def ordered(fleet: Fleet, now: float) -> list[StartProbe]:
    return [e for e in fleet.handle(ev.Tick(), now) if isinstance(e, StartProbe)]


def test_every_look_takes_the_next_ones_until_all_have_had_their_turn(fleet: Fleet) -> None:
    now, met = 1.0 + SETTLE_S, set()
    for turn in range(8):
        orders = ordered(fleet, now)
        assert len(orders) <= AT_ONCE_MAX
        window = {f"id-{(turn * WINDOW + k) % RELAYS:02}" for k in range(WINDOW)}
        both = {w for order in orders for w in (order.worker_id, order.peer.worker_id)}
        assert both <= window
        met |= both
        now += LAPSE_S + LOOK_S
    assert met == {f"id-{i:02}" for i in range(RELAYS)}


def test_when_everybody_is_measured_nobody_looks_any_more(fleet: Fleet) -> None:
    now = 1.0 + SETTLE_S
    for worker in fleet.state.workers.values():
        worker.links.up.settle(1e6, 1.0)
        worker.links.down.settle(1e6, 1.0)
    looks = 0
    wake: float | None = now
    while wake is not None and wake < 100.0:
        looks += 1
        effects = fleet.handle(ev.Tick(), wake)
        assert not [e for e in effects if isinstance(e, StartProbe)]
        wake = next((e.time_s for e in effects if isinstance(e, WakeAt)), None)
    assert looks <= RELAYS // WINDOW + 2


def test_a_demoted_one_is_looked_for_again(fleet: Fleet) -> None:
    for worker in fleet.state.workers.values():
        worker.links.up.settle(1e6, 1.0)
        worker.links.down.settle(1e6, 1.0)
    for k in range(10):
        assert not ordered(fleet, 10.0 + k * LOOK_S)
    slow = fleet.state.workers["id-33"]
    fleet._demotions.demote(slow, 5e5)
    fleet.handle(ev.Heard(slow.worker_id, slow.session or 0), 70.0)
    orders = [order for k in range(4) for order in ordered(fleet, 73.0 + k * LOOK_S)]
    assert any("id-33" in (order.worker_id, order.peer.worker_id) for order in orders)


def test_after_a_failure_somebody_else_is_the_partner(fleet: Fleet) -> None:
    for worker in fleet.state.workers.values():
        worker.links.up.settle(1e6, 1.0)
        worker.links.down.settle(1e6, 1.0)
    suspect = fleet.state.workers["id-07"]
    fleet._demotions.demote(suspect, 5e5)
    now, partners = 1.0 + SETTLE_S, []
    while len(partners) < 3 and now < 1000.0:
        for order in ordered(fleet, now):
            assert order.peer.worker_id == suspect.worker_id
            partners.append(order.worker_id)
            session = next(w.session for w in fleet.state.workers.values() if w.worker_id == order.worker_id)
            assert session is not None
            busy = ev.ProbeEnded(order.worker_id, session, order.order, None, None, 0.0, "something flows here")
            fleet.handle(busy, now + 0.1)
        now += LOOK_S
    assert len(set(partners)) == 3
