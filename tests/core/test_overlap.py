"""The verdict on a run: the published check values from measured broadcasts, and what is said when some is missing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chappe.core import events as ev
from chappe.core.overlap import Timed, slope_s
from chappe.core.training_config import Mode, TrainingConfig, Verdict
from chappe.planning.errors import PlanInputError
from tests.core.training_rig import PAYLOAD, Rig

ECHO2 = TrainingConfig(kappa=2, batch=2048, t_train_s=1500, activation=False)


def test_the_published_run_with_nine_workers_is_enough_and_with_eight_thin() -> None:
    nine = Rig(ECHO2, 9)
    nine.publish(1, 1437)
    found = nine.assess()
    assert found.broadcast is not None
    assert found.broadcast.at_target_s == pytest.approx(1437)
    assert found.slack_s == pytest.approx(1563)
    assert found.required_per_s == pytest.approx(2.621, abs=5e-4)
    assert (found.required_workers, found.verdict, found.bubble) == (9, Verdict.ENOUGH, 0)
    eight = Rig(ECHO2, 8)
    eight.publish(1, 1437)
    assert (eight.assess().required_workers, eight.assess().verdict) == (9, Verdict.THIN)
    assert "a fault will be felt" in eight.assess().reason


def test_a_pool_of_seventy_per_cent_makes_the_learner_wait_as_published() -> None:
    rig = Rig(ECHO2, 10, rate=0.7 * 2.6206 / 10)
    rig.publish(1, 1437)
    found = rig.assess()
    assert found.verdict is Verdict.SHORT
    assert found.bubble == pytest.approx(0.183, abs=1e-3)
    assert "18.3%" in found.reason


def test_a_broadcast_that_fills_the_period_is_infeasible_with_its_remedies() -> None:
    rig = Rig(replace(ECHO2, t_train_s=700), 9)
    rig.publish(1, 1437)
    found = rig.assess()
    assert found.verdict is Verdict.INFEASIBLE
    assert found.slack_s == pytest.approx(-37)
    assert "raise kappa to 3" in found.reason
    assert "97.4% of the payload" in found.reason


def test_what_is_missing_is_said_and_nothing_is_guessed() -> None:
    rig = Rig(replace(ECHO2, t_train_s=None), 3, rate=None)
    assert "T_train is not known" in rig.assess().reason
    rig.publish(1, 1400)
    rig.wait(1600)
    rig.publish(2, 1400)
    found = rig.assess()
    assert found.t_train is not None
    assert (found.t_train.seconds, found.t_train.source) == (pytest.approx(1500), "measured")  # 3000 s over kappa
    assert found.verdict is Verdict.UNKNOWN
    assert "no worker has declared or reported" in found.reason
    assert found.pool_per_s is None
    assert found.required_per_s is not None  # what can be said is said
    fresh = Rig(ECHO2, 3)
    assert "T_bcast is not known" in fresh.assess().reason
    fresh.start(1)
    assert fresh.assess().broadcast is not None  # from the offer on there is a bound


def test_t_train_is_the_trainers_word_before_the_configured_before_the_measured() -> None:
    rig = Rig(ECHO2, 9)
    rig.publish(1, 100)
    assert rig.assess().t_train == Timed(1500, "configured")
    rig.publish(2, 100, t_train_s=900.0)
    assert rig.assess().t_train == Timed(900, "told")


def test_one_night_off_is_not_a_slow_step() -> None:
    rig = Rig(replace(ECHO2, t_train_s=None), 9)
    for version, pause in enumerate((2000.0, 2000.0, 60_000.0, 2000.0, 2000.0), start=1):
        rig.publish(version, 1000)
        rig.wait(pause)
    rig.start(6)
    found = rig.assess().t_train
    assert found is not None
    assert found.seconds == pytest.approx(1500)


def test_the_target_fraction_decides_and_the_tail_stands_beside_it() -> None:
    rig = Rig(replace(ECHO2, fraction=0.5), 4)
    rig.start(1)
    rig.wait(1400)
    rig.install(1, "w0", "w1")
    rig.wait(1000)
    rig.install(1, "w2", "w3")
    sent = rig.assess().broadcast
    assert sent is not None
    assert (sent.at_target_s, sent.tail_s) == (pytest.approx(1400), pytest.approx(2400))


def test_a_larger_payload_and_a_slower_link_are_seen_before_the_broadcast_ends() -> None:
    rig = Rig(ECHO2, 9)
    rig.publish(1, 1437)
    rig.wait(1563)
    rig.start(2, payload=2 * PAYLOAD)
    sent = rig.assess().broadcast
    assert sent is not None
    assert (sent.at_target_s, sent.source) == (pytest.approx(2874), "expected")
    assert rig.assess().verdict is Verdict.SHORT  # 126 s are left of the period, said at its start
    slow = Rig(ECHO2, 9)
    slow.publish(1, 1437)
    slow.join("w3", downlink=5e6)  # it comes back and says that its line is worse
    found = slow.assess()
    assert found.broadcast is not None
    assert found.broadcast.at_target_s == pytest.approx(1437 * 12.5 / 5)
    assert found.verdict is Verdict.INFEASIBLE


def test_a_running_broadcast_that_is_late_counts_with_what_it_still_lacks() -> None:
    rig = Rig(ECHO2, 9)
    rig.publish(1, 1437)
    rig.wait(1563)
    rig.start(2)
    rig.wait(1400)
    half = ev.Holding("v2", ev.ObjectState.RECEIVING, chunks=((0, 500),), chunks_total=1000)
    for name in (f"w{i}" for i in range(9)):
        rig.tell(ev.HoldingChanged(name, rig.sessions[name], half))
    sent = rig.assess().broadcast
    assert sent is not None
    assert (sent.at_target_s, sent.source) == (pytest.approx(1400 + 656, abs=1), "running")
    assert rig.assess().verdict is Verdict.SHORT


def test_who_leaves_is_missing_and_who_reports_is_believed_over_what_was_declared() -> None:
    rig = Rig(ECHO2, 9)
    rig.publish(1, 1437)
    rig.tell(ev.RolloutsReported("w0", rig.sessions["w0"], 0.03))
    assert rig.assess().pool_per_s == pytest.approx(8 * 0.33 + 0.03)
    rig.wait(110, silent=("w1",))
    assert rig.assess().pool_per_s == pytest.approx(7 * 0.33 + 0.03)
    assert rig.assess().active == 8
    for name in (f"w{i}" for i in range(9)):
        rig.tell(ev.LeaveRequested(name, rig.sessions[name]))
    assert rig.assess().verdict is Verdict.SHORT
    assert "no worker is here" in rig.assess().reason


def test_a_report_of_an_old_stream_is_nobodys() -> None:
    rig = Rig(ECHO2, 1)
    old = rig.sessions["w0"]
    rig.join("w0")
    rig.tell(ev.RolloutsReported("w0", old, 99.0))
    assert rig.state.workers["w0"].reported_rollouts_per_s is None


def test_broadcasts_that_grow_are_a_warning_while_the_pool_is_still_enough() -> None:
    rig = Rig(ECHO2, 12)
    for version, t_bcast_s in enumerate((1437, 1537, 1637, 1737), start=1):
        rig.publish(version, t_bcast_s)
        rig.wait(3000 - t_bcast_s)
    assert rig.assess().verdict is Verdict.DRIFTING
    assert "more than the one before" in rig.assess().reason
    steady = Rig(ECHO2, 12)
    for version, t_bcast_s in enumerate((1437, 1480, 1420, 1450), start=1):
        steady.publish(version, t_bcast_s)
        steady.wait(3000 - t_bcast_s)
    assert steady.assess().verdict is Verdict.ENOUGH


def test_the_slope_is_not_that_of_one_outlier() -> None:
    assert slope_s([100, 101, 500, 103, 104]) == pytest.approx(1, abs=0.1)
    assert slope_s([7]) == 0


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"kappa": 0}, "kappa"),
        ({"batch": float("nan")}, "batch"),
        ({"gamma": 0.9}, "gamma"),
        ({"fraction": 0.7}, "fraction"),
        ({"t_train_s": -1.0}, "t_train"),
        ({"staleness": 2}, "staleness"),
        ({"kappa": 6, "staleness": 6}, "kappa 6"),
        ({"delta_max": 2}, "delta_max"),
        ({"mode": Mode.ASYNCHRONOUS}, "delta_max"),
        ({"mode": Mode.ASYNCHRONOUS, "delta_max": 0}, "delta_max"),
    ],
)
def test_bad_configuration_is_named(changes: dict[str, object], named: str) -> None:
    with pytest.raises(PlanInputError, match=named):
        replace(ECHO2, **changes)  # type: ignore[arg-type]
