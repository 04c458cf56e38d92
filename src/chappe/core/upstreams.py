"""All of a relay's ways to its parents, one for each (object, stripe) that it was ordered to fetch.

It turns the edges of an assignment into streams that begin, go on, drain or end. It must not know what has been
received: `Transfer` says for each whether it is wanted, and hears which object a fetch that has ended was of.

      orders ──▶ taken by the stream that is there, or a new one (`core/upstream`)
                 with another map of stripes: what runs drains before anything is asked (`core/remapping`)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count

from chappe.core.events import HeldEdge
from chappe.core.ranges import RangeSet
from chappe.core.relay_events import EdgeOrder, RelayEffect
from chappe.core.remapping import Remapping
from chappe.core.upstream import Upstream


class Upstreams:
    """`jitter()` gives numbers in [0, 1). Streams stay in the order in which they were first ordered."""

    def __init__(self, jitter: Callable[[], float]) -> None:
        self._jitter = jitter
        self._fetches = count(1)
        self._streams: dict[tuple[str, int], Upstream] = {}
        self._remapping = Remapping()

    def held(self) -> tuple[HeldEdge, ...]:
        """The streams that are really there."""
        return tuple(edge for u in self._streams.values() if (edge := u.held()) is not None)

    def of(self, fetch: int) -> Upstream | None:
        """The one that has this fetch running."""
        return next((u for u in self._streams.values() if u.fetch == fetch), None)

    def drained(self, fetch: int) -> str | None:
        """The object of a fetch that was left to bring what it had on its way, and has ended; None for any other."""
        upstream = next((u for u in self._streams.values() if u.drained(fetch)), None)
        return self._remapping.ended(fetch) if upstream is None else upstream.order.object_id

    def order(self, edges: Sequence[EdgeOrder], now: float) -> list[RelayEffect]:
        """These and no others, from now on."""
        orders = {(o.object_id, o.stripe): o for o in edges}
        maps = {order.object_id: order.stripes for order in orders.values()}
        effects: list[RelayEffect] = []
        for upstream in self._streams.values():
            if maps.get(upstream.order.object_id, upstream.order.stripes) != upstream.order.stripes:
                effects += self._remapping.drain(upstream, now)
        effects += self._remapping.close({key[0] for key in self._streams} - maps.keys())
        for key in [key for key in self._streams if key not in orders]:
            effects += self._streams.pop(key).close()
        for key, order in orders.items():
            if key in self._streams:
                effects += self._streams[key].take(order, now)
            else:
                self._streams[key] = Upstream(order, self._jitter, self._fetches.__next__)
        return effects

    def run(self, wanted: Callable[[Upstream], bool], now: float) -> list[RelayEffect]:
        """Begin and end what is due. Nothing is asked of an object whose former streams still bring something."""
        effects = self._remapping.overdue(now)
        for upstream in self._streams.values():
            if not self._remapping.waits(upstream.order.object_id):
                effects += upstream.run(wanted(upstream), now)
        return effects

    def lost(self, object_id: str, dropped: RangeSet, chunks_total: int | None) -> list[RelayEffect]:
        """Chunks are gone that had come: end the streams whose they are, which asked before and will not bring them."""
        effects: list[RelayEffect] = []
        for upstream in self._of_object(object_id):
            order = upstream.order
            if chunks_total is None or any(order.stripes.within(order.stripe, dropped.ranges(), chunks_total)):
                effects += upstream.close()
        return effects

    def restart(self, object_id: str) -> list[RelayEffect]:
        """End all that is under way of this object, and ask at once, from the parent on."""
        effects = self.end_drains(object_id)
        for upstream in self._of_object(object_id):
            effects += upstream.close()
            upstream.again()
        return effects

    def end_drains(self, object_id: str) -> list[RelayEffect]:
        """Of the streams by its former map."""
        return self._remapping.close({object_id})

    def close(self) -> list[RelayEffect]:
        """For good."""
        return [*self._remapping.close(), *(effect for u in self._streams.values() for effect in u.close())]

    @property
    def wake_at(self) -> float | None:
        times = [u.wake_at for u in self._streams.values()]
        return min((t for t in [*times, self._remapping.wake_at] if t is not None), default=None)

    def _of_object(self, object_id: str) -> Iterator[Upstream]:
        return (u for u in self._streams.values() if u.order.object_id == object_id)
