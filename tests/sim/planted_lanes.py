"""Bugs to plant in what decides who gets a version as which object, and what has to notice each."""

from __future__ import annotations

from typing import Any

import pytest
from planted import Bug, _nothing, _set

from chappe.core import feeding, lanes, supersede
from chappe.core.feeding import Feeding
from chappe.core.holding import Held
from chappe.core.inventory import Inventory
from chappe.core.lanes import Lanes
from chappe.core.publication import Publication
from chappe.sim import storing
from chappe.sim.lanes import LANES_MIXED


def _full_only_forgotten(patch: pytest.MonkeyPatch) -> None:
    """It is noted that a worker could not take its delta, and it is given another one all the same."""

    def enter(state: Any, publication: Publication, worker: Any) -> Publication | None:
        member = publication.members[worker.worker_id]
        kept, member.full_only = member.full_only, False
        try:
            return true(state, publication, worker)
        finally:
            member.full_only = kept

    true = lanes.enter
    patch.setattr(lanes, "enter", enter)


def _lane_outlives_main(patch: pytest.MonkeyPatch) -> None:
    """The bug that seed 3 found: a version is retired while one of its lanes is still finished by somebody."""
    patch.setattr(supersede, "lanes_of", lambda *_: [])


def _applied_without_a_base(patch: pytest.MonkeyPatch) -> None:
    """A failed delta is tried again for ever instead of being told."""

    def on_delta_failed(self: Held, detail: str, part: str) -> None:
        assert detail or part
        self.landing = False

    patch.setattr(Held, "on_delta_failed", on_delta_failed)


def _delta_lands_as_itself(patch: pytest.MonkeyPatch) -> None:
    """The store puts the delta's own bytes where the snapshot belongs."""

    def land_encoded(relay: Any, order: Any, copy: Any) -> Any:
        return storing.Storing._land_full(relay, order, copy)

    patch.setattr(storing, "land_encoded", land_encoded)


def _installed_is_not_kept(patch: pytest.MonkeyPatch) -> None:
    """The bug that seed 478 found: two deltas land while a hook runs, and the version that is served goes."""
    true = Inventory.retain

    def retain(self: Inventory) -> Any:
        installed, self._installs.installed = self._installs.installed, 0
        try:
            return true(self)
        finally:
            self._installs.installed = installed

    patch.setattr(Inventory, "retain", retain)


def _member_goes_elsewhere(patch: pytest.MonkeyPatch) -> None:
    """The lane a worker is enlisted in is not the one that its member says."""

    def lane_for(state: Any, main: Publication, worker: Any) -> str:
        found = true(state, main, worker)
        others = [i for i in main.deltas if i != found and i in state.publications]
        return others[0] if found and others else found

    true = lanes.lane_for
    patch.setattr(lanes, "lane_for", lane_for)


def _stand_nowhere(patch: pytest.MonkeyPatch) -> None:
    """The bug that seed 469 found: whoever has landed another object feeds nobody that the publisher cannot reach."""
    patch.setattr(Feeding, "_stand_between", lambda *_: set())


LANE_BUGS = [
    Bug("base-not-asked-for", _set(lanes, "takes", lambda *_: True), ("joins", "absent"), "has not proven"),
    Bug("full-only-forgotten", _full_only_forgotten, ("base", "wrongdelta", "absent"), "is back in one"),
    Bug("lane-outlives-main", _lane_outlives_main, ("slow", "downlink", "absent"), "one of its lanes goes on"),
    Bug(
        "anybody-is-recruited",
        _set(feeding, "_available", lambda *_: True),
        ("leaves", "publisher", "absent"),
        "is gone and has a place",
        first=11,
    ),
    Bug("failed-delta-not-told", _applied_without_a_base, ("base", "wrongdelta"), "does not end", 1),
    Bug("delta-lands-as-itself", _delta_lands_as_itself, ("joins",), "landed a delta"),
    Bug("installed-not-kept", _installed_is_not_kept, LANES_MIXED, "has given up version", first=478),
    Bug("member-goes-elsewhere", _member_goes_elsewhere, ("absent", "joins"), "has not proven", first=5),
    Bug(
        "withdrawn-and-waited-for", _set(Lanes, "withdrawn", _nothing), ("nodelta", "publisher"), "promised|its publis"
    ),
    Bug("lanes-outlive-their-main", _set(Lanes, "end", _nothing), ("source", "publisher"), "lanes goes on"),
    Bug(
        "lane-without-a-source",
        _set(Lanes, "_has_no_source", lambda *_: False),
        ("nodelta", "publisher"),
        "does not end",
        first=19,
    ),
    Bug("walled-in", _set(Lanes, "_walled_in", lambda *_: False), LANES_MIXED, "does not end", first=80),
    Bug("nobody-stands-between", _stand_nowhere, LANES_MIXED, "does not end|without a parent", first=469),
]
