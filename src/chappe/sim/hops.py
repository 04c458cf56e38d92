"""What a simulated node measures of its hops, with the real meters, and when it says so: as `chappe.hop.reports` does.

a stream begins or ends ──────┐
two seconds are over ─────────┼─▶ what moved since the last report ──▶ LinksMeasured, while there is a session
half of one, while it is news ┘    that a hop has become slow, or has ended
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from typing import TYPE_CHECKING

from chappe.core.events import LinkSample, LinksMeasured
from chappe.hop.meter import HopMeter, HopMeters
from chappe.hop.reports import CLOSE_LOOKS, LOOKS
from chappe.sim.clock import Entry

if TYPE_CHECKING:
    from chappe.sim.flow import Stream
    from chappe.sim.node import Node


class Hops:
    """Of one process: what a dead one had not reported is lost."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._received, self._sent = HopMeters(sending=False), HopMeters(sending=True)
        self._open: dict[tuple[Stream, bool], tuple[HopMeter, ExitStack]] = {}
        self._timer: Entry | None = None
        self._due_s = 0.0  # of the next report
        self._close = 0  # for so many looks each is one
        self._noticed_s = -math.inf  # when a hop here has become slower

    def begin(self, stream: Stream, *, sending: bool) -> None:
        peer = stream.child if sending else stream.parent
        meters, meter, stack = self._sent if sending else self._received, HopMeter(), ExitStack()
        stack.enter_context(meters.measure(peer.worker_id, meter))
        stream.pace.meters.append(meter)
        self._open[stream, sending] = meter, stack
        self._changed()

    def end(self, stream: Stream, *, sending: bool) -> None:
        found = self._open.pop((stream, sending), None)
        if found is None:
            return
        meter, stack = found
        stream.measure()
        stream.pace.meters.remove(meter)
        stack.close()
        self._changed()

    def notice(self) -> None:
        """A hop here has become slower: shells look four times as often as they report, and see it at the next look,
        or at the one after it, which has nothing else in it."""
        if self._open:
            self._noticed_s = self._node.agenda.now
            self._arm(self._node.world.config.report_s / LOOKS)

    def _changed(self) -> None:
        self._due_s = self._node.agenda.now
        self._arm(0.0)

    def _arm(self, delay_s: float) -> None:
        """Look then, unless that is to happen sooner."""
        if self._timer is not None and self._timer.action is not None:
            if self._timer.time_s <= self._node.agenda.now + delay_s:
                return
            self._timer.cancel()
        self._timer = self._node.later(delay_s, self._look)

    def _look(self) -> None:
        self._timer = None
        now, report_s = self._node.agenda.now, self._node.world.config.report_s
        for stream, _ in self._open:
            stream.measure()
        if self._received.look(now) | self._sent.look(now):
            self._close = CLOSE_LOOKS
        if self._close > 0 or now >= self._due_s - 1e-9:
            self._report()
            self._due_s = now + report_s
        self._close = max(0, self._close - 1)
        if self._open:
            again = self._close > 0 or now < self._noticed_s + report_s / LOOKS
            self._arm(report_s / LOOKS if again else self._due_s - now)

    def _report(self) -> None:
        taken = [*self._received.take_samples(), *self._sent.take_samples()]
        samples = tuple(map(self._as_measured, taken))
        session = self._node.session
        if samples and session is not None and self._node.joined:
            self._node.world.counts["reports"] += 1
            self._node.say(LinksMeasured(self._node.worker_id, session.number, samples))

    def _as_measured(self, sample: LinkSample) -> LinkSample:
        """Nobody measures exactly."""
        noise = self._node.world.config.measuring_noise
        if not noise:
            return sample
        rate = sample.bytes_per_s * self._node.world.random.uniform(1 - noise, 1 + noise)
        return LinkSample(sample.peer, sample.sending, rate, sample.busy_s, sample.streams, sample.bytes, sample.tcp)
