"""What a hop carries: bytes, and goodput while there was something to send.

A hop that waits for its own parent says nothing about its link, so only busy time counts: the time between two records
unless `idle` was called in between. For gauges both sums decay, so that the estimate follows the link within a few
seconds. For reports (`LinkSample`) they do not, and the beginning of each busy period is left out as well:

    start ──── FILL_S: goes into socket buffers, as fast as memory ────┬──── the link's own pace: counted ──── idle

So a hop that always catches up with its source reports what moved and no rate: it was not the limit.

What a sender puts into one message follows the pace: all bytes over all time. Goodput would take the socket's buffers
for the link, and on a thin one a message would be half a second on its way, of which the child can forward nothing.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from chappe.core.events import LinkSample
from chappe.hop.source import Signal

DECAY_S = 5.0
FILL_S = 0.25
"""Longer than it takes to fill the windows of a fast link, and than the 0.1 s in which a starved child is told so."""
_QUIET_S = 3.0
DROP_SHARE = 0.75
"""Of what was said of a hop: less is news."""
KEPT_FADE = 0.95
"""Of what a hop carried while it kept up, in each look: its source may have become slower, which is not its fault."""
_SLICE_S = 0.1  # of busy time: less tells nothing of a rate


GRPC, TCP = "grpc", "tcp"
"""What carries the payload of a hop."""


class HopMeter:
    """One stream of one hop. Times are on any steady clock, in seconds. Recorded by one thread, read from any."""

    __slots__ = (
        "_begun_s",
        "_busy_s",
        "_bytes",
        "_last_record_s",
        "_lock",
        "_mark_s",
        "_paced_bytes",
        "_paced_s",
        "_start_s",
        "bytes_total",
        "linked_bytes",
        "linked_s",
        "transport",
    )

    def __init__(self) -> None:
        self.bytes_total = 0
        self.linked_bytes = 0
        """Of the bytes in all, those that moved at the link's own pace..."""
        self.linked_s = 0.0
        """...in so much time."""
        self.transport = GRPC
        """What carries the payload now."""
        self._bytes = 0.0
        self._busy_s = 0.0
        self._mark_s: float | None = None
        self._start_s = 0.0  # of the present busy period
        self._begun_s: float | None = None  # the first one
        self._paced_bytes = 0.0
        self._paced_s = 0.0
        self._last_record_s = -math.inf
        self._lock = threading.Lock()  # what belongs together is changed together

    def switched_to_tcp(self) -> None:
        self.transport = TCP

    def start(self, now: float) -> None:
        """There is something to send from now on."""
        with self._lock:
            if self._mark_s is None:
                self._mark_s = self._start_s = now

    def record(self, size_bytes: int, now: float) -> None:
        """These bytes have passed. The time since the last call was busy, if there was something to send."""
        with self._lock:
            self._record(size_bytes, now)

    def _record(self, size_bytes: int, now: float) -> None:
        self.bytes_total += size_bytes
        self._pace(size_bytes, now)
        self._last_record_s = now
        if self._mark_s is None:
            self._mark_s = self._start_s = now  # the first bytes after a pause: how long they took is not known
            return
        begun_s = max(self._mark_s, self._start_s + FILL_S)
        if begun_s < now:
            share = 1.0 if begun_s == self._mark_s else (now - begun_s) / (now - self._mark_s)
            self.linked_bytes += int(size_bytes * share)
            self.linked_s += now - begun_s
        self._pass(now)
        self._bytes += size_bytes

    def idle(self, now: float) -> None:
        """Nothing left to send: the time until the next record is not the link's."""
        with self._lock:
            self._pass(now)
            self._mark_s = None

    def sums(self) -> tuple[int, int, float]:
        """Bytes in all, those at the link's own pace, and the seconds of that, at one moment."""
        with self._lock:
            return self.bytes_total, self.linked_bytes, self.linked_s

    def goodput_bytes_per_s(self) -> float | None:
        """Decayed bytes over decayed busy time; None before anything was measured."""
        return self._bytes / self._busy_s if self._busy_s > 0 else None

    def linked_bytes_per_s(self) -> float | None:
        """The link's own pace over all of this stream; None before anything was measured."""
        return self.linked_bytes / self.linked_s if self.linked_s > 0 else None

    def paced_bytes_per_s(self) -> float:
        """Decayed bytes over decayed time, waiting included, without what went into buffers at the beginning.

        In the long run never more than the link carries; low at first: `FILL_S` counts as time without bytes.
        """
        return self._paced_bytes / (self._paced_s + FILL_S)

    def current_bytes_per_s(self, now: float) -> float:
        """The goodput for a gauge: 0 when nothing has passed for three seconds."""
        return (self.goodput_bytes_per_s() or 0.0) if now - self._last_record_s < _QUIET_S else 0.0

    def _pace(self, size_bytes: int, now: float) -> None:
        if self._begun_s is None:
            self._begun_s = now if self._mark_s is None else self._start_s
        begun_s = max(self._last_record_s, self._begun_s + FILL_S)
        elapsed_s = now - begun_s
        if elapsed_s < 0:
            return  # still filling
        sent_for_s = now - max(self._last_record_s, self._begun_s)
        share = 1.0 if sent_for_s <= elapsed_s else elapsed_s / sent_for_s
        factor = math.exp(-elapsed_s / DECAY_S)
        self._paced_bytes = self._paced_bytes * factor + size_bytes * share
        self._paced_s = self._paced_s * factor + elapsed_s

    def _pass(self, now: float) -> None:
        if self._mark_s is None:
            return
        elapsed_s = max(0.0, now - self._mark_s)
        self._mark_s = now
        factor = math.exp(-elapsed_s / DECAY_S)
        self._bytes *= factor
        self._busy_s = self._busy_s * factor + elapsed_s


class HopMeters:
    """The streams of one direction of a node: each has its meter while it runs, and leaves its sums behind."""

    def __init__(self, *, sending: bool, signal: Signal | None = None) -> None:
        """`signal` may be shared: it fires when a stream begins and when one ends."""
        self.signal = signal if signal is not None else Signal()
        self._sending = sending
        self._open: dict[HopMeter, str] = {}
        self._reported: dict[HopMeter, Sums] = {}
        self._looked: dict[HopMeter, Sums] = {}
        self._said: dict[HopMeter, float] = {}  # the rate that was reported last
        self._kept_up: dict[HopMeter, float] = {}  # what it carried while its source was the limit, since then
        self._passed: dict[HopMeter, int] = {}  # bytes, at the last look
        self._looked_s: float | None = None
        self._ended: list[Moved] = []  # not reported yet
        self._before: list[Moved] = []  # what open streams moved before they became slow, not reported yet
        self._over_tcp: set[str] = set()  # peers of streams that have ended with a data connection, not reported yet
        self._end_unseen = False
        self._finished_bytes = 0

    @contextmanager
    def measure(self, peer: str, meter: HopMeter) -> Iterator[HopMeter]:
        """`meter` is that of a stream with this worker while the block runs."""
        self._open[meter] = peer
        self._reported[meter] = self._looked[meter] = meter.sums()
        self.signal.fire()
        try:
            yield meter
        finally:
            del self._open[meter]
            self._finished_bytes += meter.bytes_total
            self._ended.append((peer, *_less(meter.sums(), self._reported[meter])))
            if meter.transport == TCP:
                self._over_tcp.add(peer)
            del self._reported[meter], self._looked[meter]
            self._said.pop(meter, None)
            self._kept_up.pop(meter, None)
            self._passed.pop(meter, None)
            self._end_unseen = True
            self.signal.fire()

    def transports(self) -> list[str]:
        """Of each open stream, what carries its payload now."""
        return [meter.transport for meter in self._open]

    @property
    def flowing(self) -> bool:
        """A stream is open, whether or not it has anything to carry now."""
        return bool(self._open)

    @property
    def bytes_total(self) -> int:
        return self._finished_bytes + sum(meter.bytes_total for meter in self._open)

    def bytes_per_s(self, now: float) -> float:
        """Goodput of all together while there was something to send; 0 when nothing flows."""
        return sum(meter.current_bytes_per_s(now) for meter in self._open)

    def look(self, now: float) -> bool:
        """Whether it is worth while to report often now: since the last look a stream has ended, or has become slow.

        Slow is less than was said of it, and also less than it carried while it kept up with its source: of such a
        hop no rate was said. What a slow one moved before this look is reported by itself, so that the two rates are
        not mixed.
        """
        news, self._end_unseen = self._end_unseen, False
        elapsed_s = now - self._looked_s if self._looked_s is not None else 0.0
        self._looked_s = now
        for meter, peer in self._open.items():
            sums, looked = meter.sums(), self._looked[meter]
            _, linked, busy_s = _less(sums, looked)
            passed, self._passed[meter] = self._passed.get(meter, sums[0]), sums[0]
            if busy_s < _SLICE_S:
                if elapsed_s >= _SLICE_S:
                    carried = (sums[0] - passed) / elapsed_s
                    self._kept_up[meter] = max(carried, KEPT_FADE * self._kept_up.get(meter, 0.0))
                continue
            self._looked[meter] = sums
            if linked / busy_s < DROP_SHARE * max(self._said.get(meter, 0.0), self._kept_up.get(meter, 0.0)):
                news = True
                self._before.append((peer, *_less(looked, self._reported[meter])))
                self._reported[meter] = looked
        return news

    def take_samples(self) -> list[LinkSample]:
        """What has moved since the last call, by peer; nothing for a stream on which nothing has.

        Of a stream that has become slow there are two, the earlier one first.
        """
        before, self._before = self._before, []
        flowed, self._ended = [entry for entry in self._ended if entry[1]], []
        for meter, peer in self._open.items():
            moved, linked, busy_s = _less(meter.sums(), self._reported[meter])
            self._reported[meter] = self._looked[meter] = meter.sums()
            if moved:
                flowed.append((peer, moved, linked, busy_s))
            if busy_s >= _SLICE_S:
                self._said[meter] = linked / busy_s
                self._kept_up.pop(meter, None)
        over_tcp = {peer for meter, peer in self._open.items() if meter.transport == TCP} | self._over_tcp
        self._over_tcp = set()
        sums: dict[str, tuple[int, int, float]] = {}
        for peer, moved, linked, busy_s in flowed:
            had = sums.get(peer, (0, 0, 0.0))
            sums[peer] = (had[0] + moved, had[1] + linked, had[2] + busy_s)
        entries = [entry for entry in before if entry[1]] + [(peer, *entry) for peer, entry in sums.items()]
        return [
            LinkSample(
                peer,
                self._sending,
                linked / busy_s if busy_s > 0 else 0.0,
                busy_s,
                len(flowed),
                moved,
                peer in over_tcp,
            )
            for peer, moved, linked, busy_s in entries
        ]


Moved = tuple[str, int, int, float]  # peer, bytes, those at the link's pace, seconds of that
Sums = tuple[int, int, float]


def _less(now: Sums, before: Sums) -> Sums:
    return now[0] - before[0], now[1] - before[1], now[2] - before[2]
