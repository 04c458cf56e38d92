"""The watch over a run: a line for each change of verdict, hysteresis, restarts, silence where none is asked for."""

from __future__ import annotations

from chappe.core import events as ev
from chappe.core.fleet import Fleet, FleetConfig
from chappe.core.status import status_view
from chappe.core.training_config import TrainingConfig
from tests.core.training_rig import Rig

ECHO2 = TrainingConfig(kappa=2, batch=2048, t_train_s=1500, activation=False)


def test_each_change_of_verdict_is_one_line_with_its_reason_and_figures() -> None:
    rig = Rig(ECHO2, 9)
    rig.publish(1, 1437)
    rig.wait(100)
    assert rig.verdicts()[-1][1] == "enough"
    lines = len(rig.verdicts())
    rig.wait(500)
    rig.tell(ev.RolloutsReported("w0", rig.sessions["w0"], 0.34))
    rig.wait(10)
    assert len(rig.verdicts()) == lines
    rig.wait(110, silent=("w0",))
    assert rig.verdicts()[lines:] == [("enough", "thin")]
    said = next(log for log in reversed(rig.logs) if log.event == "training_verdict")
    assert "a fault will be felt" in said.reason
    assert said.fields["required_workers"] == 9


def test_the_warning_comes_at_the_offer_not_at_the_end_of_the_period() -> None:
    rig = Rig(ECHO2, 9)
    rig.publish(1, 1437)
    rig.wait(1563)
    started = rig.now
    rig.start(2, payload=2 * 16_400_000_000)
    rig.wait(2)
    assert rig.verdicts()[-1] == ("enough", "short")
    assert rig.now - started <= 2


def test_a_pool_at_the_border_is_not_a_line_a_second() -> None:
    rig = Rig(ECHO2, 9, rate=0.3203)  # gamma times the requirement is 9 x 0.32029
    rig.publish(1, 1437)
    rig.tell(ev.RolloutsReported("w0", rig.sessions["w0"], 0.6))
    rig.wait(10)
    lines = len(rig.verdicts())
    for i in range(20):
        rig.tell(ev.RolloutsReported("w0", rig.sessions["w0"], 0.3203 if i % 2 else 0.3190))
        rig.wait(3)
    assert rig.verdicts()[lines:] == [("enough", "thin")]
    rig.tell(ev.RolloutsReported("w0", rig.sessions["w0"], 0.6))
    rig.wait(3)
    assert rig.verdicts()[-1] == ("thin", "enough")


def test_a_restarted_coordinator_says_where_it_stands_and_knows_what_it_knew() -> None:
    rig = Rig(ECHO2, 9)
    rig.publish(1, 1437, t_train_s=1500)
    rig.tell(ev.RolloutsReported("w0", rig.sessions["w0"], 0.5))
    rig.wait(10)
    before = rig.assess()
    rig.restart()
    assert rig.assess() == before  # the workers are expected back: nobody is missing yet
    lines = len(rig.verdicts())
    rig.wait(2)
    assert rig.verdicts()[lines:] == [("none", "enough")]


def test_an_idle_fleet_is_not_woken() -> None:
    rig = Rig(ECHO2, 3)
    rig.publish(1, 1437)
    rig.wait(20)
    looks = len([e for e in rig.effects if type(e).__name__ == "WakeAt"])
    for _ in range(50):
        rig.tell(ev.Heard("w0", rig.sessions["w0"]))
    assert len([e for e in rig.effects if type(e).__name__ == "WakeAt"]) == looks


def test_without_a_training_section_nothing_is_watched_or_shown() -> None:
    config = FleetConfig("run", probes=False)
    fleet = Fleet(config)
    effects = fleet.handle(ev.Hello("a", 1, ev.Role.RELAY, "a", 1, "a:1", rollouts_per_second=1.0), 0.0)
    effects += fleet.handle(ev.RolloutsReported("a", 1, 2.0), 1.0)
    assert not [e for e in effects if getattr(e, "event", "") == "training_verdict"]
    view = status_view(fleet.state, config, 1.0)
    assert view.training is None
    assert (view.relays[0].rollouts_per_s, view.relays[0].rollouts_source) == (2.0, "measured")


def test_status_shows_the_verdict_that_was_said_and_the_figures_of_now() -> None:
    rig = Rig(ECHO2, 9)
    rig.publish(1, 1437)
    rig.wait(10)
    view = status_view(rig.state, rig.config, rig.now).training
    assert view is not None
    assert (view.verdict, view.required_workers, view.active_workers) == ("enough", 9, 9)
    assert view.t_bcast_source == "expected"
    assert view.slack_s is not None
    assert round(view.slack_s) == 1563
