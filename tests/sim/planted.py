"""Bugs to plant in the cores and around them, each as somebody might write it, and what has to notice it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from chappe.core import bridging, edges
from chappe.core.context import Context
from chappe.core.demotion import Demotions
from chappe.core.departure import Departure
from chappe.core.dialling import Dialling
from chappe.core.effects import Dialer
from chappe.core.events import Role
from chappe.core.holding import Held
from chappe.core.installing import Installs
from chappe.core.inventory import Inventory
from chappe.core.measuring import Measuring
from chappe.core.membership import Membership
from chappe.core.placement import Placement
from chappe.core.probing import Probing
from chappe.core.publication import Publication
from chappe.core.ranges import Range
from chappe.core.reasons import RebuildReason
from chappe.core.slow import Slow
from chappe.core.state import FleetState
from chappe.core.upstream import Upstream
from chappe.hop.guard import EdgeGuard, Ticket
from chappe.sim import storing
from chappe.sim.copies import Copy
from chappe.sim.process import Process

Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True, slots=True)
class Bug:
    """`caught` is what the broken invariant says. It shows under faults of these `kinds`, mostly after seed `first`."""

    name: str
    plant: Plant
    kinds: tuple[str, ...]
    caught: str
    first: int = 0
    most: int = 12  # faults in a run
    scale: int = 1  # of the payload: time for a fault to be found out
    latency_s: float | None = None  # as drawn


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _set(owner: object, name: str, value: object) -> Plant:
    return lambda patch: patch.setattr(owner, name, value)


def _epoch_lost(patch: pytest.MonkeyPatch) -> None:
    true = FleetState.from_rows

    def from_rows(workers: Any, publications: Any, reserved_epoch: int, saved_s: float = 0.0) -> FleetState:
        assert reserved_epoch >= 0
        return true(workers, publications, 0, saved_s)

    patch.setattr(FleetState, "from_rows", from_rows)


def _older_process_taken(patch: pytest.MonkeyPatch) -> None:
    true = Membership._refusal

    def refusal(self: Membership, known: Any, event: Any) -> str:
        newer = event if known is None else replace(event, generation=max(event.generation, known.generation))
        return true(self, known, newer)

    patch.setattr(Membership, "_refusal", refusal)


def _dropped_range_forgotten(patch: pytest.MonkeyPatch) -> None:
    def on_dropped(self: Held, chunks: tuple[Range, ...]) -> bool:
        return chunks != self.chunks

    patch.setattr(Held, "on_dropped", on_dropped)


def _lapsed_keep_their_places(patch: pytest.MonkeyPatch) -> None:
    true = Placement.take_out

    def take_out(self: Placement, worker: Any, reason: RebuildReason) -> Any:
        return [] if reason is RebuildReason.LEASE_LAPSED else true(self, worker, reason)

    patch.setattr(Placement, "take_out", take_out)


def _order_dropped(patch: pytest.MonkeyPatch) -> None:
    def take(self: Upstream, order: Any, now: float) -> list[Any]:
        self.order = replace(self.order, epoch=order.epoch)
        return []

    patch.setattr(Upstream, "take", take)


def _said_before_welcome_is_lost(patch: pytest.MonkeyPatch) -> None:
    true = Process.say
    patch.setattr(Process, "say", lambda self, event: true(self, event) if self.joined else None)


def _retired_source_trusted(patch: pytest.MonkeyPatch) -> None:
    def unretire(self: Publication) -> None:
        self.retired = False

    patch.setattr(Publication, "unretire", unretire)


def _full_disk_for_ever(patch: pytest.MonkeyPatch) -> None:
    true = Held.wants_chunks
    patch.setattr(Held, "wants_chunks", lambda self, now: self.waiting is None and true(self, now))


def _sender_is_always_the_limit(patch: pytest.MonkeyPatch) -> None:
    def attribute(self: Measuring, parent: Any, child: Any, rate: float, busy_s: float, up: Any, down: Any) -> None:
        assert up.bytes_per_s > 0
        assert down.bytes_per_s > 0
        if parent.role is Role.RELAY:
            parent.links.up.exact(rate, busy_s, self._context.now)

    patch.setattr(Measuring, "_attribute", attribute)


def _failed_hook_counts(patch: pytest.MonkeyPatch) -> None:
    true = Inventory.on_install_ended
    patch.setattr(Inventory, "on_install_ended", lambda self, version, _, reason: true(self, version, True, reason))


def _stays_only(patch: pytest.MonkeyPatch) -> None:
    def stays(self: Departure, worker: Any) -> None:
        self._leaving.pop(worker.worker_id, None)

    patch.setattr(Departure, "stays", stays)


BUGS = [
    Bug("verification-skipped", _set(Copy, "mismatches", lambda *_: []), ("rot",), "unverified"),
    Bug("second-child-allowed", _set(Ticket, "end", _nothing), ("kill", "reset", "pause"), "serves .* in slot"),
    Bug("epoch-lost-at-restart", _epoch_lost, ("coordinator",), "assignment epoch"),
    Bug("stale-generation-accepted", _older_process_taken, ("kill", "ghost", "ghost"), "went back from generation"),
    Bug("outranked-token-accepted", _set(EdgeGuard, "_check_epoch", _nothing), ("blackhole", "pause"), "it knew of"),
    Bug("fallback-evicts-live-child", _set(EdgeGuard, "_check_present", _nothing), ("blackhole",), "gave up a child"),
    Bug("dropped-range-forgotten", _dropped_range_forgotten, ("rot", "corrupt"), "does not end|without a parent", 29),
    Bug("lapsed-worker-kept-as-parent", _lapsed_keep_their_places, ("pause", "partition"), "is gone and has a place"),
    Bug("lease-ignored", _set(Membership, "_lapse", _nothing), ("pause", "partition"), "of silence"),
    Bug("root-not-compared", _set(storing, "root_of", lambda copy: copy.object.root), ("forge",), "false bytes"),
    Bug("reassignment-dropped", _order_dropped, ("kill",), "does not end|without a parent|fed each other"),
    Bug(
        "landed-versions-forgotten",
        _set(Installs, "restore", _nothing),
        ("kill", "restart"),
        "went back|readers follow",
    ),
    Bug(
        "publications-not-written",
        _set(Context, "persist", _nothing),
        ("coordinator",),
        "newest version went|does not end",
    ),
    Bug(
        "said-before-welcome-is-lost",
        _said_before_welcome_is_lost,
        ("reset",),
        "does not end",
        first=206,
        most=30,
        latency_s=0.05,
    ),
    Bug(
        "retired-source-trusted",
        _retired_source_trusted,
        ("source", "coordinator"),
        "does not end|without a parent",
        15,
    ),
    Bug("full-disk-for-ever", _full_disk_for_ever, ("disk",), "does not end|without a parent"),
    Bug(
        "page-never-doubted",
        _set(Held, "on_corrupt", lambda *_: False),
        ("forge", "outage"),
        "does not end|without a parent",
    ),
    Bug("slowness-ignored", _set(Slow, "judge", lambda *_: False), ("uplink",), "nothing is done about it"),
    Bug(
        "verdict-without-demotion", _set(Demotions, "demote", _nothing), ("uplink",), "is not demoted", most=1, scale=4
    ),
    Bug("demoted-for-ever", _set(Demotions, "sent", _nothing), ("uplink",), "is not trusted again"),
    Bug("lower-bound-taken-as-measured", _sender_is_always_the_limit, ("clock",), "uplink of .* was measured"),
    Bug("probe-while-publishing", _set(Probing, "_idle", lambda _: True), ("clock",), "is ordered while"),
    Bug("host-behind-nat-dialled", _set(edges, "dialer", lambda *_: Dialer.CHILD), ("clock",), "cannot be dialled"),
    Bug("dial-back-ignored", _set(Dialling, "dialed_back", _nothing), ("clock",), "counts as one that can be dialled"),
    Bug("cut-off-left-alone", _set(bridging, "spots", lambda *_, **__: iter(())), ("kill",), "it could move|without a"),
    Bug("failed-hook-counts", _failed_hook_counts, ("hook",), "does not say that its hook failed"),
    Bug("drained-and-forgotten", _stays_only, ("leaves", "partition"), "does not end|without a parent"),
]
