"""One stripe's way to its parent: which source to fetch from now, and when to try the next.

It must not know what has been received, nor why a fetch is wanted: `Transfer` says whether one is. It keeps at most one
fetch, tries the parent first and then the fallbacks in order, and waits longer after each round in which none worked.

                 wanted                 connected                  another parent
      idle ─────────────▶ fetching ──────────────▶ fetching (held edge) ──────────▶ draining
        ▲  not wanted        │  ▲                        │                             │ ended, or DRAIN_S
        └────────────────────┤  │ retry_at               │ ended                       ▼
                             ▼  │                        │                        fetching from that one
                           waiting ◀─────────────────────┘

A child that is moved while its parent sends takes what that has on its way before it asks the next one, which then is
asked for the rest only. Nobody is blamed for how that ends. (One that is to take other chunks: see `core/remapping`.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from chappe.core.effects import Count, Log
from chappe.core.events import HeldEdge
from chappe.core.reasons import ParentLossReason as Loss
from chappe.core.relay_events import (
    CloseFetch,
    DrainFetch,
    EdgeOrder,
    FetchEnded,
    OpenFetch,
    RelayEffect,
    ReportConnected,
    ReportLost,
    Source,
)

NEXT_SOURCE_DELAY_S = 0.05
ROUND_DELAY_MAX_S = 5.0
RETRY_DELAY_MAX_S = 1.0
DRAIN_S = 1.0
"""Three chunks and a queue of any link from 2 Mbit/s up. A parent that is left because it is slow costs no more."""


@dataclass(frozen=True, slots=True)
class Reaction:
    """What the loss of a source means. `patience`: how often the same one is tried again before the next.

    `delay_s` is before the first retry and doubles; `quiet`: the coordinator hears of it when the patience has run out.
    """

    patience: int
    delay_s: float
    quiet: bool = False


REACTIONS = {
    Loss.UNREACHABLE: Reaction(patience=0, delay_s=0.2),
    Loss.BROKEN: Reaction(patience=1, delay_s=0.1),  # a connection may break while both ends are well
    Loss.STALLED: Reaction(patience=0, delay_s=0.2),
    # Its child is most often the dead node between us, which counts as alive for as long as writes fill its window.
    Loss.BUSY: Reaction(patience=1, delay_s=0.5),
    # There is a newer order under way, here or at the parent: do not fight it. Its own is heard of before the retry.
    Loss.EVICTED: Reaction(patience=1, delay_s=0.5, quiet=True),
    Loss.STALE: Reaction(patience=1, delay_s=0.5),
    Loss.BAD_TOKEN: Reaction(patience=0, delay_s=0.5),
    Loss.UNKNOWN_OBJECT: Reaction(patience=6, delay_s=0.05, quiet=True),  # its own assignment may come a moment later
    Loss.DROPPED: Reaction(patience=0, delay_s=1.0),
    Loss.LEAVING: Reaction(patience=0, delay_s=0.5),
    Loss.CORRUPT: Reaction(patience=1, delay_s=0.0),  # tell it which chunks, so that it verifies its own copy
    Loss.PROTOCOL: Reaction(patience=0, delay_s=0.5),
}


@dataclass(slots=True)
class Upstream:
    """The state of one (object, stripe). `jitter()` gives numbers in [0, 1), `next_fetch()` one never given before."""

    order: EdgeOrder
    jitter: Callable[[], float]
    next_fetch: Callable[[], int]
    fetch: int | None = None
    source: Source | None = None  # of the running fetch, or of the last one
    connected: bool = False
    retry_at: float | None = None
    index: int = 0  # into order.sources
    tries: int = 0  # failures in a row at this source
    rounds: int = 0  # through all sources without progress
    rejected: tuple[int, ...] = ()
    last_loss: Loss | None = field(default=None)
    draining: int | None = None  # the fetch from the parent before
    drain_until: float = 0.0

    def held(self) -> HeldEdge | None:
        """The stream that is really there."""
        if self.fetch is None or not self.connected or self.source is None:
            return None
        return HeldEdge(self.order.object_id, self.order.stripe, self.source.peer.worker_id, self.order.epoch)

    def take(self, order: EdgeOrder, now: float) -> list[RelayEffect]:
        """A new order for the same (object, stripe). A running fetch from the wanted parent is kept."""
        old, self.order = self.order, order
        if order.epoch == old.epoch and order.sources == old.sources and order.stripes == old.stripes:
            return []
        goes_on = self.fetch is not None and order.stripes == old.stripes  # with another map other chunks are meant
        if goes_on and self.source is not None and order.parent is not None:
            running = self.source.peer
            if running == order.parent.peer and self.source.dials == order.parent.dials:
                self.source = order.parent
                self.index = self.tries = self.rounds = 0
                held = self.held() if order.epoch != old.epoch else None
                return [] if held is None else [ReportConnected(held)]
            peers = [source.peer for source in order.sources]
            if order.epoch == old.epoch and running in peers:
                self.index = peers.index(running)
                return []
        if order.stripes != old.stripes or order.parent is None:
            effects = self.close()
        else:
            effects = self._leave(order.parent, now)
        self.index = self.tries = self.rounds = 0
        self.retry_at = None
        self.last_loss = None
        return effects

    def run(self, wanted: bool, now: float) -> list[RelayEffect]:
        """Open a fetch if one is wanted, possible and due; close it if it is not wanted."""
        if not wanted or self.order.parent is None:
            self.retry_at = None
            return self.close()
        if self.draining is not None and now < self.drain_until:
            return []
        if self.fetch is not None or (self.retry_at is not None and now < self.retry_at):
            return []
        effects = self._stop_draining()
        source = self.order.sources[self.index % len(self.order.sources)]
        if self.source is not None and self.source.peer.worker_id != source.peer.worker_id:
            reason = "reassigned" if self.last_loss is None else self.last_loss.value
            effects.append(Count("parent_changes_total", (("reason", reason),)))
            self.rejected = ()
        self.retry_at = None
        self.source, self.connected, self.fetch = source, False, self.next_fetch()
        effects.append(
            OpenFetch(
                self.fetch,
                self.order.object_id,
                self.order.stripe,
                source,
                self.rejected,
                self.order.epoch,
                self.order.expected_bytes_per_s,
                self.order.stripes,
            )
        )
        self.rejected = ()
        return effects

    def close(self) -> list[RelayEffect]:
        """End the running fetch, if any, without holding it against its source."""
        effects = self._stop_draining()
        if self.fetch is not None:
            effects.append(CloseFetch(self.fetch))
        self.fetch, self.connected = None, False
        return effects

    def drained(self, fetch: int) -> bool:
        """Whether this was the fetch from the parent before, which has ended."""
        if self.draining != fetch:
            return False
        self.draining = None
        return True

    @property
    def wake_at(self) -> float | None:
        return self.retry_at if self.draining is None else self.drain_until

    def release(self) -> tuple[int | None, list[RelayEffect]]:
        """Give what still brings something away, to somebody who waits for its end: a fetch that is connected, or one
        that drains already, upon which none has followed yet. Any other one ends here."""
        if self.draining is not None:
            fetch, self.draining = self.draining, None
            return fetch, self.close()
        if self.fetch is None or not self.connected:
            return None, self.close()
        fetch, self.fetch, self.connected = self.fetch, None, False
        return fetch, [DrainFetch(fetch)]

    def _leave(self, parent: Source, now: float) -> list[RelayEffect]:
        if self.fetch is None:  # perhaps it drains: that goes on
            return []
        elsewhere = self.source is not None and self.source.peer.worker_id != parent.peer.worker_id
        if not (self.connected and elsewhere):
            return self.close()
        self.draining, self.drain_until = self.fetch, now + DRAIN_S
        self.fetch, self.connected = None, False
        return [DrainFetch(self.draining)]

    def _stop_draining(self) -> list[RelayEffect]:
        fetch, self.draining = self.draining, None
        return [] if fetch is None else [CloseFetch(fetch)]

    def on_connected(self) -> list[RelayEffect]:
        self.connected = True
        held = self.held()
        return [] if held is None else [ReportConnected(held)]

    def on_done(self, progressed: bool, now: float) -> None:
        """The source sent all that was asked for. Something may have been lost since: then another fetch follows."""
        self.fetch, self.connected = None, False
        self.tries = 0
        if progressed:
            self.rounds = 0
        else:  # said to be complete and gave nothing: never in a tight loop
            self.rounds += 1
            self.retry_at = now + self._delay(REACTIONS[Loss.PROTOCOL].delay_s, self.rounds, ROUND_DELAY_MAX_S)

    def on_lost(self, ended: FetchEnded, loss: Loss, now: float) -> list[RelayEffect]:
        """The source failed: report it, and choose the next try."""
        assert self.source is not None
        self.fetch, self.connected = None, False
        if ended.progressed:
            self.tries = self.rounds = 0
        self.tries += 1
        self.last_loss = loss
        self.rejected = ended.rejected
        reaction = REACTIONS[loss]
        peer = self.source.peer
        is_fallback = self.index % len(self.order.sources) != 0
        effects: list[RelayEffect] = []
        if (self.tries > reaction.patience or not reaction.quiet) and not (is_fallback and loss is Loss.BUSY):
            held = HeldEdge(self.order.object_id, self.order.stripe, peer.worker_id, self.order.epoch)
            effects.append(ReportLost(held, loss))
            fields: dict[str, str | int | float | list[str]] = {
                "parent": peer.name,
                "address": peer.address,
                "object_id": self.order.object_id,
                "detail": ended.detail,
            }
            effects.append(Log("parent lost", loss.value, fields))
        if self.tries <= reaction.patience:
            self.retry_at = now + self._delay(reaction.delay_s, self.tries, RETRY_DELAY_MAX_S)
            return effects
        self.tries = 0
        self.index = (self.index + 1) % len(self.order.sources)
        if self.index != 0:
            self.retry_at = now + self._delay(NEXT_SOURCE_DELAY_S, 1, RETRY_DELAY_MAX_S)
        else:
            self.rounds += 1
            base = max(reaction.delay_s, NEXT_SOURCE_DELAY_S)
            self.retry_at = now + self._delay(base, self.rounds, ROUND_DELAY_MAX_S)
        return effects

    def again(self) -> None:
        """Forget the waiting: try at once, from the parent on."""
        self.index = self.tries = self.rounds = 0
        self.retry_at = None
        self.rejected = ()

    def _delay(self, base_s: float, attempt: int, most_s: float) -> float:
        """Doubling, capped, and spread over half to one and a half of it, so that a segment does not retry in step."""
        return float(min(base_s * 2 ** min(attempt - 1, 16), most_s) * (0.5 + self.jitter()))
