"""Bugs to plant that only stripes have: each as somebody might write it, and what has to notice it."""

from __future__ import annotations

from typing import Any

import pytest
from planted import Bug, _nothing, _set

from chappe.core import carried, publication, striped_links
from chappe.core.chain import Layout
from chappe.core.holding import Held
from chappe.core.measuring import Measuring
from chappe.core.placement import Placement
from chappe.core.ranges import RangeSet
from chappe.core.restriping import Restriping
from chappe.core.striped_links import StripedLinks
from chappe.core.stripemap import PLAIN, StripeMap
from chappe.core.upstream import Upstream
from chappe.hop.guard import Ticket
from chappe.sim.copies import Copy


def _everything_on_every_stripe(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StripeMap, "restrict", lambda self, stripe, wanted, total: RangeSet(wanted.ranges()))


def _first_stripe_stands_for_all(patch: pytest.MonkeyPatch) -> None:
    true = Held.lacks
    patch.setattr(Held, "lacks", lambda self, stripes, stripe: true(self, stripes, min(stripe, 0)))


def _joiner_in_one_stripe_only(patch: pytest.MonkeyPatch) -> None:
    true = Placement.append

    def append(self: Placement, pub: Any, worker: Any, reason: Any) -> None:
        stripes = Layout.stripes
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Layout, "stripes", property(lambda layout: stripes.fget(layout)[:1]))  # type: ignore[attr-defined]
            true(self, pub, worker, reason)

    patch.setattr(Placement, "append", append)


def _gone_from_one_stripe_only(patch: pytest.MonkeyPatch) -> None:
    true = Placement.take_from

    def take_from(self: Placement, pub: Any, worker: Any, reason: Any) -> Any:
        places = Layout.places
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Layout, "places", lambda layout, w: places(layout, w)[:1])
            return true(self, pub, worker, reason)

    patch.setattr(Placement, "take_from", take_from)


def _map_not_restored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(publication, "_stripes_from_json", lambda _: PLAIN)


def _dead_end_kept_in_one_stripe(patch: pytest.MonkeyPatch) -> None:
    """Whoever rotates a chain of one stripe leaves the head where it was."""
    patch.setattr(Layout, "rotate", lambda *_: set())


def _one_receiver_is_enough(patch: pytest.MonkeyPatch) -> None:
    """Whatever a hop carries of what it should, its sender is the limit."""
    patch.setattr(carried, "PEERS_MIN", 1)
    patch.setattr(striped_links, "PEERS_MIN", 0)
    for share in ("SLOW_SHARE", "PEER_SHARE", "PACE_SHARE", "LOW_SHARE"):
        patch.setattr(carried, share, 10.0)


def _slow_peers_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    """Whoever sends to two that are slow with everybody is blamed for it."""
    patch.setattr(StripedLinks, "_clear", lambda *_, **__: True)


def _hops_of_stripes_are_evidence(patch: pytest.MonkeyPatch) -> None:
    true = Measuring._received

    def received(self: Measuring, child: Any, sample: Any) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(StripeMap, "plain", property(lambda _: True))
            inner.setattr(Measuring, "_shared_by", lambda *_, **__: False)
            inner.setattr(Measuring, "_busy_twice", lambda *_, **__: False)
            true(self, child, sample)

    patch.setattr(Measuring, "_received", received)


def _lost_for_good(patch: pytest.MonkeyPatch) -> None:
    """A fetch that was lost is never opened again where another one of the object goes on."""
    true = Upstream.run

    def run(self: Upstream, wanted: bool, now: float) -> Any:
        return true(self, wanted and (self.order.stripe == 0 or self.last_loss is None), now)

    patch.setattr(Upstream, "run", run)


def _new_map_on_old_chains(patch: pytest.MonkeyPatch) -> None:
    """Chunks have other stripes, and who feeds whom in them is as before."""
    true = Restriping._lay

    def lay(self: Restriping, pub: Any, judged: Any) -> None:
        before = pub.layout
        true(self, pub, judged)
        pub.layout = before

    patch.setattr(Restriping, "_lay", lay)


BUGS = [
    Bug("everything-on-every-stripe", _everything_on_every_stripe, ("clock",), "in another stripe|chunks twice"),
    Bug("first-stripe-stands-for-all", _first_stripe_stands_for_all, ("kill",), "does not end|without a parent", 17),
    Bug("joiner-in-one-stripe-only", _joiner_in_one_stripe_only, ("joins", "kill"), "no place in some stripe"),
    Bug("gone-from-one-stripe-only", _gone_from_one_stripe_only, ("kill", "pause"), "is gone and has a place", 8),
    Bug("map-not-restored", _map_not_restored, ("coordinator",), "no place in some stripe|maps at once", 7),
    Bug("chain-not-turned", _dead_end_kept_in_one_stripe, ("publisher",), "does not end|starves|without a parent", 26),
    Bug("second-child-in-a-stripe", _set(Ticket, "end", _nothing), ("kill", "reset", "pause"), "serves .* in slot", 1),
    Bug("verification-skipped", _set(Copy, "mismatches", lambda *_: []), ("rot", "poison"), "unverified", 11),
    Bug("page-never-doubted", _set(Held, "on_corrupt", lambda *_: False), ("poison",), "does not end|without a parent"),
    Bug("lost-stripe-stays-lost", _lost_for_good, ("kill", "reset"), "does not end|without a parent"),
    Bug("one-receiver-is-enough", _one_receiver_is_enough, ("clock",), "counts as short|was measured as"),
    Bug(
        "slow-peers-not-looked-at",
        _slow_peers_are_not_looked_at,
        ("tail", "downlink"),
        "counts as short",
        13,
        most=24,
        scale=3,
    ),
    Bug("a-new-map-on-old-chains", _new_map_on_old_chains, ("slow",), "no place in some stripe|are planned", 4),
    Bug("hops-of-stripes-are-evidence", _hops_of_stripes_are_evidence, ("clock",), "is demoted|was measured as"),
]
