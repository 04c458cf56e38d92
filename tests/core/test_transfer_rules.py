"""The transfer machine under any order of events: `Rig` checks the rules, these that nothing is ever forgotten."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st
from relay_rig import ROOT_A, ROOT_B, Rig, order, source, target

from chappe.core.events import ObjectState
from chappe.core.installing import InstallMode
from chappe.core.reasons import ParentLossReason
from chappe.core.relay_events import (
    ChunksDropped,
    Connected,
    Disconnected,
    FetchConnected,
    FetchEnded,
    InstallEnded,
    Landed,
    LandFailed,
    LocalFault,
    Progress,
    RelayEvent,
)

OBJECTS = ["a" * 32, "b" * 32, "c" * 32]
ROOTS = ["", ROOT_A, ROOT_B]
SOURCES = [source(name) for name in "pqr"]


def _step(rig: Rig, draw: random.Random) -> None:
    object_id = draw.choice(OBJECTS)
    held = next((h for h in rig.machine.holdings() if h.object_id == object_id), None)
    match draw.randrange(9):
        case 0:
            named = [i for i in range(3) if draw.random() < 0.7]
            parents = [draw.choice([None, *SOURCES]) for _ in named]
            orders = [
                order(OBJECTS[i], draw.randrange(1, 4), p, draw.sample(SOURCES, 2))
                for i, p in zip(named, parents, strict=True)
            ]
            root = draw.choice(ROOTS)
            rig.assign(*[target(OBJECTS[i], i + 1, root) for i in named], *orders)
        case 1 if rig.open:
            rig.do(FetchConnected(draw.choice(list(rig.open))))
        case 2 if rig.open:
            reason = draw.choice(
                [None, *ParentLossReason, *(f for f in LocalFault if f is not LocalFault.ROOT_MISMATCH)]
            )
            rejected = (1,) if reason is ParentLossReason.CORRUPT else ()
            rig.do(FetchEnded(draw.choice(list(rig.open)), reason, "", rejected, draw.random() < 0.5))
        case 3 | 4 if held is not None and held.version == 0 and object_id not in rig.landing:
            rig.do(Progress(object_id, ((0, draw.choice([3, 8, 8])),), 8))
        case 5 if rig.landing:
            landing = draw.choice(sorted(rig.landing))
            failed = LandFailed(landing, draw.choice(list(LocalFault)), "")
            rig.do(failed if draw.random() < 0.4 else Landed(landing))
        case 6:
            rig.do(InstallEnded(rig.hook or draw.randrange(1, 4), draw.random() < 0.7))
        case 7:
            others: list[RelayEvent] = [Connected(), Disconnected(), ChunksDropped(object_id, ((0, 2),))]
            rig.do(draw.choice(others))
        case _ if rig.wake is not None:
            rig.wait()
        case _:
            pass


@given(st.integers(0, 2**32), st.sampled_from(list(InstallMode)))
def test_the_rules_hold_and_nothing_is_forgotten(seed: int, mode: InstallMode) -> None:
    draw = random.Random(seed)
    rig = Rig(mode, jitter=draw.random())
    newest = 0
    for _ in range(60):
        _step(rig, draw)
        versions = rig.machine.versions()
        assert versions[ObjectState.VERIFIED] >= versions[ObjectState.INSTALLED]
        assert versions[ObjectState.VERIFIED] >= newest, "a version that went back"
        newest = versions[ObjectState.VERIFIED]
    _finish(rig)


def _finish(rig: Rig) -> None:
    """However the machine got here, with sound peers and a sound disk every target is reached."""
    versions = dict(zip(OBJECTS, (1, 2, 3), strict=True))
    rig.assign(*[target(o, v, ROOT_A) for o, v in versions.items()], *[order(o, 99, SOURCES[0]) for o in OBJECTS])
    for _ in range(40):
        for fetch in list(rig.open.values()):
            if fetch.fetch in rig.open:
                rig.do(Progress(fetch.object_id, ((0, 8),), 8))
                rig.do(FetchEnded(fetch.fetch, None, progressed=True))
        for object_id in sorted(rig.landing):
            rig.do(Landed(object_id))
        if rig.hook is not None:
            rig.do(InstallEnded(rig.hook, ok=True))
        if rig.wake is not None:
            rig.wait()
    gave_up = {h.object_id for h in rig.machine.holdings() if h.state is ObjectState.FAILED}
    there = {h.object_id for h in rig.machine.holdings() if h.version}
    assert there | gave_up == set(OBJECTS)
    assert not rig.open
