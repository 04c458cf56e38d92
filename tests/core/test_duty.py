"""Who generates and who stands by: first decision, faults, drift, newcomers, restarts, and what standbys are given."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from chappe.core import events as ev
from chappe.core.fleet import Fleet, FleetConfig
from chappe.core.state import FleetState
from chappe.core.status import status_view
from chappe.core.training_config import TrainingConfig
from tests.core.training_rig import LEASE_S, Rig

RUN = TrainingConfig(kappa=2, batch=2048, t_train_s=1500)  # needs 2.621 rollouts/s, 2.883 with gamma
ALL = {f"w{i}" for i in range(12)}


def settled(prices: dict[str, float] | None = None, training: TrainingConfig = RUN) -> Rig:
    """Twelve workers of 0.33 rollouts/s after one broadcast; nine are enough."""
    rig = Rig(training, 0)
    for i in range(12):
        rig.join(f"w{i}", 0.33, 1.0 + i / 100 if prices is None else prices.get(f"w{i}", 1.0))
    rig.publish(1, 1437)
    rig.wait(10)
    rig.checked = True
    return rig


def duty_logs(rig: Rig, since: int = 0) -> list[tuple[str, str]]:
    return [(str(log.fields["relay"]), str(log.fields["duty"])) for log in rig.logs[since:] if log.event == "duty"]


def test_the_cheapest_sufficient_set_is_active_and_everybody_is_told_why() -> None:
    rig = settled()
    assert rig.duties() == ({f"w{i}" for i in range(9)}, {"w9", "w10", "w11"})
    assert (rig.told("w0"), rig.told("w11")) == ("active", "standby")
    views = {r.name: r for r in status_view(rig.state, rig.config, rig.now).relays}
    assert (views["w0"].duty, views["w11"].duty) == ("active", "standby")
    assert "9 of 12 workers make 2.97 rollouts/s, 1.1 x 2.621 are wanted" in views["w11"].duty_reason


def test_before_anything_is_known_everybody_generates() -> None:
    rig = Rig(RUN, 12)
    rig.wait(10)
    assert rig.duties() == (ALL, set())
    assert rig.told("w0") == "active"
    assert duty_logs(rig) == []


def test_gamma_absorbs_a_fault_and_its_return_without_any_change() -> None:
    rig = settled()
    lines = len(rig.logs)
    rig.wait(LEASE_S + 10, silent=("w0",))
    assert rig.state.workers["w0"].lapsed
    assert rig.assess().pool_per_s == pytest.approx(8 * 0.33)
    rig.join("w0", 0.33, 1.0)
    rig.wait(4000)
    assert duty_logs(rig, lines) == []


def test_a_fault_that_lasts_a_period_gets_its_margin_back() -> None:
    rig = settled()
    lines = len(rig.logs)
    rig.wait(LEASE_S + 2500, silent=("w0",))
    assert duty_logs(rig, lines) == []
    rig.wait(1000, silent=("w0",))
    rig.tell(ev.RolloutsReported("w1", rig.sessions["w1"], 0.33))
    rig.wait(5, silent=("w0",))
    assert duty_logs(rig, lines) == [("w9", "active")]
    assert "lasted a period" in rig.state.workers["w9"].duty_reason


def test_two_faults_call_a_standby_at_once_and_the_cheapest_first() -> None:
    rig = settled()
    lines = len(rig.logs)
    rig.tell(ev.LeaveRequested("w0", rig.sessions["w0"]))
    rig.tell(ev.LeaveRequested("w1", rig.sessions["w1"]))
    rig.wait(3)
    assert duty_logs(rig, lines) == [("w9", "active"), ("w10", "active")]  # up to gamma, so that the next is absorbed
    assert (rig.told("w9"), rig.told("w11")) == ("active", "standby")
    assert "short of the" in rig.state.workers["w9"].duty_reason


def test_drift_of_a_rate_calls_standbys_and_a_flicker_does_nothing() -> None:
    rig = settled()
    lines = len(rig.logs)
    for rate in (0.30, 0.36, 0.31, 0.33):
        rig.tell(ev.RolloutsReported("w3", rig.sessions["w3"], rate))
        rig.wait(5)
    assert duty_logs(rig, lines) == []
    for name in ("w3", "w4"):
        rig.tell(ev.RolloutsReported(name, rig.sessions[name], 0.05))
    rig.wait(5)
    assert set(duty_logs(rig, lines)) == {("w9", "active"), ("w10", "active")}


def test_a_cheaper_set_takes_over_after_a_period_and_only_if_it_is_worth_it() -> None:
    rig = settled(prices={"w11": 0.95})
    assert "w11" in rig.duties()[0]
    assert rig.duties()[1] == {"w7", "w8", "w9"}
    lines = len(rig.logs)
    rig.join("w9", 0.33, 0.5)  # one of nine at half the price: 6 %
    rig.wait(3200)
    rig.tell(ev.RolloutsReported("w5", rig.sessions["w5"], 0.33))
    rig.wait(5)
    assert duty_logs(rig, lines) == []
    rig.join("w8", 0.33, 0.3)
    rig.wait(2500)
    assert duty_logs(rig, lines) == []
    rig.wait(600)
    rig.tell(ev.RolloutsReported("w5", rig.sessions["w5"], 0.33))
    rig.wait(5)
    active, standby = rig.duties()
    assert {"w8", "w9", "w11"} <= active
    assert len(standby) == 3
    assert "an hour" in rig.state.workers["w9"].duty_reason


def test_a_newcomer_stands_by_where_the_pool_is_enough_and_is_called_where_it_is_not() -> None:
    rig = settled()
    rig.join("new", 0.33, 5.0)
    rig.wait(3)
    assert "new" in rig.duties()[1]
    assert "enough without it" in rig.state.workers["new"].duty_reason
    for i in range(4):
        rig.tell(ev.LeaveRequested(f"w{i}", rig.sessions[f"w{i}"]))
    rig.wait(3)
    assert rig.duties()[1] - {f"w{i}" for i in range(4)} == set()


def test_all_together_too_few_are_all_active() -> None:
    rig = Rig(RUN, 5)
    rig.publish(1, 1437)
    rig.wait(10)
    assert rig.duties() == ({f"w{i}" for i in range(5)}, set())
    assert "all workers are short" in rig.state.workers["w0"].duty_reason


def test_a_worker_whose_rate_nobody_knows_generates() -> None:
    rig = settled()
    rig.join("dark", None, None)
    rig.wait(3)
    assert "dark" in rig.duties()[0]
    assert rig.told("dark") == "active"


def test_without_prices_all_are_the_same_and_fast_ones_come_first() -> None:
    rig = Rig(RUN, 0)
    for i in range(12):
        rig.join(f"w{i}", 0.66 if i > 9 else 0.33, None)
    rig.publish(1, 1437)
    rig.wait(10)
    active, _ = rig.duties()
    assert {"w10", "w11"} < active
    assert len(active) == 7  # 2 x 0.66 and 5 x 0.33


def test_standbys_get_every_version_last_in_line_and_nobody_waits_for_them() -> None:
    rig = settled()
    rig.start(2)
    publication = rig.state.publications["v2"]
    for chain in publication.layout.chains:
        tails = [member in {"w9", "w10", "w11"} for member in chain.members]
        assert tails == sorted(tails)  # nobody whose rollouts are wanted stands behind one
    assert sum(len(chain.members) for chain in publication.layout.chains) == 12
    assert publication.targeted == 9
    rig.travel(2, 1400)
    rig.install(2, *(f"w{i}" for i in range(9)))
    assert publication.t_bcast["1.0"] == pytest.approx(1400)
    rig.install(2, "w9", "w10", "w11")
    assert rig.state.workers["w9"].installed == 2


def test_one_that_is_called_while_a_version_is_on_its_way_is_waited_for() -> None:
    rig = settled()
    rig.start(2)
    publication = rig.state.publications["v2"]
    for name in ("w0", "w1"):
        rig.tell(ev.LeaveRequested(name, rig.sessions[name]))
    rig.wait(LEASE_S + 5, silent=("w0", "w1"))
    assert publication.members["w9"].targeted
    assert not publication.members["w11"].targeted
    rig.install(2, *(f"w{i}" for i in range(2, 9)))
    assert "1.0" not in publication.t_bcast
    rig.install(2, "w9", "w10")
    assert "1.0" in publication.t_bcast


def test_a_restart_keeps_the_duties_and_a_run_that_is_not_asked_about_has_none() -> None:
    rig = settled()
    before = rig.duties()
    rig.restart()
    rig.wait(10)
    assert rig.duties() == before
    assert duty_logs(rig) == duty_logs(rig)[:12]
    assert rig.told("w11") == "standby"
    stored = rig.state.to_json()
    for training in (None, replace(RUN, activation=False)):
        fleet = Fleet(FleetConfig("run", training=training), FleetState.from_json(stored))
        fleet.handle(ev.Tick(), rig.now)
        assert not any(w.standby for w in fleet.state.workers.values())


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_the_pool_is_enough_where_it_can_be(seed: int) -> None:
    """Random faults, returns, rates, prices and versions; the invariants of the fleet hold after every event."""
    dice = random.Random(seed)
    rig = settled()
    version = 1
    for _ in range(40):
        name = f"w{dice.randrange(12)}"
        here = rig.state.workers[name].session is not None
        match dice.randrange(5):
            case 0 if here:
                rig.tell(ev.SessionLost(name, rig.sessions[name]))
            case 1:
                rig.join(name, dice.choice([0.2, 0.33, 0.5]), dice.choice([0.5, 1.0, 2.0]))
            case 2 if here:
                rig.tell(ev.RolloutsReported(name, rig.sessions[name], dice.choice([0.1, 0.33, 0.6])))
            case 3 if rig.state.publications[f"v{version}"].phase.value == "closed":
                version += 1
                rig.start(version)
            case _:
                for other in rig.state.relays:
                    if other.session is not None and other.worker_id in rig.state.publications[f"v{version}"].members:
                        rig.install(version, other.name)
        rig.wait(dice.choice([2, 30]))
        found = rig.assess()
        assert found.required_per_s is not None
        here_all = [w for w in rig.state.relays if not (w.lapsed or w.drained or w.leaving)]
        whole = sum(w.reported_rollouts_per_s or w.rollouts_per_second or 0 for w in here_all)
        if whole >= 1.1 * found.required_per_s:
            rig.wait(3)
            now = rig.assess()
            assert now.pool_per_s is not None
            assert now.required_per_s is not None
            assert now.pool_per_s >= now.required_per_s * (1 - 1e-6) or rig.duties()[1] == set()
