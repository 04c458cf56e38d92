"""Asynchronous mode: a publication is asked for when the learner is too far ahead, once, and from the one who can."""

from __future__ import annotations

from chappe.core import effects as fx
from chappe.core import events as ev
from chappe.core.learner import fleet_version
from chappe.core.status import status_view
from chappe.core.training_config import Mode, TrainingConfig
from tests.core.training_rig import ORIGIN, Rig

ASYNC = TrainingConfig(kappa=2, batch=64, t_train_s=1500, mode=Mode.ASYNCHRONOUS, delta_max=2, activation=False)


def learner(rig: Rig, version: int, admitted: int = 0, discarded: int = 0) -> None:
    rig.tell(ev.LearnerMoved(ORIGIN, rig.sessions[ORIGIN], version, admitted, discarded))
    rig.wait(3)


def asked(rig: Rig) -> list[tuple[int, int]]:
    return [(e.learner_version, e.fleet_version) for e in rig.effects if isinstance(e, fx.AskPublication)]


def test_it_asks_when_delta_max_is_passed_and_once_for_each_version_of_the_fleet() -> None:
    rig = Rig(ASYNC, 3)
    rig.publish(10, 100)
    for version in (11, 12):
        learner(rig, version)
    assert asked(rig) == []
    learner(rig, 13)
    assert asked(rig) == [(13, 10)]
    learner(rig, 14)
    assert asked(rig) == [(13, 10)]
    learner(rig, 15)  # the answer is delta_max steps late: the request may have been lost on the way
    assert asked(rig) == [(13, 10), (15, 10)]


def test_nothing_is_asked_for_while_what_is_coming_is_new_enough() -> None:
    rig = Rig(ASYNC, 3)
    rig.publish(10, 100)
    rig.start(13)
    learner(rig, 15)
    assert asked(rig) == []
    learner(rig, 16)  # it has been overtaken on its way
    assert asked(rig) == [(16, 10)]


def test_a_new_stream_is_asked_again_and_a_periodic_run_never() -> None:
    rig = Rig(ASYNC, 3)
    rig.publish(10, 100)
    learner(rig, 13)
    rig.tell(rig.hello(ORIGIN, ev.Role.ORIGIN, uplink=37.5e6))
    learner(rig, 13)
    assert asked(rig) == [(13, 10), (13, 10)]
    periodic = Rig(TrainingConfig(kappa=2, batch=64, t_train_s=1500, activation=False), 3)
    periodic.publish(10, 100)
    learner(periodic, 99)
    assert asked(periodic) == []


def test_the_fleets_version_is_that_of_the_target_fraction() -> None:
    half = TrainingConfig(kappa=2, batch=64, fraction=0.5, t_train_s=1500, activation=False)
    rig = Rig(half, 4)
    rig.publish(1, 100)
    rig.start(2)
    rig.wait(50)
    rig.install(2, "w0")
    assert fleet_version(rig.state, half) == 1
    rig.install(2, "w1")
    assert fleet_version(rig.state, half) == 2
    assert fleet_version(Rig(half, 0).state, half) == 0


def test_what_the_learner_tells_is_shown_and_an_old_stream_is_not_heard() -> None:
    rig = Rig(ASYNC, 1)
    learner(rig, 5, admitted=40, discarded=3)
    rig.tell(ev.LearnerMoved(ORIGIN, rig.sessions[ORIGIN] + 99, 77, 1, 1))
    view = status_view(rig.state, rig.config, rig.now).training
    assert view is not None
    assert (view.learner_version, view.fleet_version, view.admitted, view.discarded) == (5, 0, 40, 3)
