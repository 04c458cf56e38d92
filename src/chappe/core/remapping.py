"""What a relay's streams still bring of an object whose map has changed, before it asks by the new one.

    another map ──▶ every connected stream of the object drains ──ended, or DRAIN_S──▶ all stripes are asked for anew
                    (also of a stripe that there is no more)

Until the last one has ended no chunk is asked for: by the new map it could be of any stripe, and would come twice. It
decides when asking may begin, nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from chappe.core.relay_events import CloseFetch, RelayEffect
from chappe.core.upstream import DRAIN_S, Upstream


@dataclass(slots=True)
class Remapping:
    """Streams by their fetch: of which object, and until when."""

    _draining: dict[int, tuple[str, float]] = field(default_factory=dict)

    def drain(self, upstream: Upstream, now: float) -> list[RelayEffect]:
        """Take over what it has running."""
        fetch, effects = upstream.release()
        if fetch is not None:
            self._draining[fetch] = (upstream.order.object_id, now + DRAIN_S)
        return effects

    def ended(self, fetch: int) -> str | None:
        """The object of a stream that has ended by itself; None when it is none of these."""
        object_id, _ = self._draining.pop(fetch, (None, 0.0))
        return object_id

    def close(self, object_ids: set[str] | None = None) -> list[RelayEffect]:
        """End those of these objects, or all."""
        over = [fetch for fetch, (of, _) in self._draining.items() if object_ids is None or of in object_ids]
        for fetch in over:
            del self._draining[fetch]
        return [CloseFetch(fetch) for fetch in over]

    def overdue(self, now: float) -> list[RelayEffect]:
        """End those whose time is over."""
        over = [fetch for fetch, (_, until_s) in self._draining.items() if now >= until_s]
        for fetch in over:
            del self._draining[fetch]
        return [CloseFetch(fetch) for fetch in over]

    def waits(self, object_id: str) -> bool:
        """Nothing is to be asked of this object yet."""
        return any(of == object_id for of, _ in self._draining.values())

    @property
    def wake_at(self) -> float | None:
        return min((until_s for _, until_s in self._draining.values()), default=None)
