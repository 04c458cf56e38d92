"""Simulated links: who can be heard by whom, and streams of messages over that.

A path may be cut in one direction only, by several faults at once. A `Pipe` is one direction of a TCP stream: in order,
nothing is lost while it lives, and what is sent into a cut waits for the path to come back. Payload does not pass
here (see `flow`), only the words of the control plane.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from chappe.sim.clock import Agenda

COORDINATOR = "coordinator"
ANYBODY = "*"
HANDSHAKES = 2
"""Round trips' halves before the first message of a new stream leaves: TCP's."""


class Network:
    """Latencies and cuts. `on_change` is called after every change of who hears whom."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._latency_s: dict[str, float] = {}
        self._cuts: Counter[tuple[str, str]] = Counter()
        self._sides: dict[str, list[int]] = {}
        self._waiting: dict[Pipe, None] = {}
        self._parts = 0
        self.changes = 0

    def add(self, node: str, latency_s: float) -> None:
        """`latency_s` is this node's half of the way to anybody."""
        self._latency_s[node] = latency_s

    def latency_s(self, a: str, b: str) -> float:
        return self._latency_s[a] + self._latency_s[b]

    def passes(self, source: str, target: str) -> bool:
        """Whether `target` hears `source`."""
        if not self._cuts and not self._sides:
            return True
        cuts = self._cuts
        if cuts[source, target] or cuts[source, ANYBODY] or cuts[ANYBODY, target]:
            return False
        return self._sides.get(source, []) == self._sides.get(target, [])

    def both(self, a: str, b: str) -> bool:
        return self.passes(a, b) and self.passes(b, a)

    def cut(self, source: str, target: str) -> None:
        self._cuts[source, target] += 1
        self._changed()

    def mend(self, source: str, target: str) -> None:
        self._cuts[source, target] -= 1
        if not self._cuts[source, target]:
            del self._cuts[source, target]
        self._changed()

    def part(self, nodes: list[str]) -> int:
        """Put these on a side of their own, until `join` with the number that is returned."""
        self._parts += 1
        number = self._parts
        for node in nodes:
            self._sides[node] = sorted([*self._sides.get(node, []), number])
        self._changed()
        return number

    def join(self, nodes: list[str], number: int) -> None:
        for node in nodes:
            left = [side for side in self._sides[node] if side != number]
            if left:
                self._sides[node] = left
            else:
                del self._sides[node]
        self._changed()

    def clear(self, node: str) -> bool:
        """No fault touches this node's paths."""
        return node not in self._sides and not any(node in pair or ANYBODY in pair for pair in self._cuts)

    def _changed(self) -> None:
        self.changes += 1
        for pipe in list(self._waiting):
            pipe.flush()
        self._on_change()

    def wait(self, pipe: Pipe, waits: bool) -> None:
        if waits:
            self._waiting[pipe] = None
        else:
            self._waiting.pop(pipe, None)


class Pipe:
    """One direction of a stream. `deliver` is called with each message, in order, until it is closed."""

    def __init__(
        self, agenda: Agenda, network: Network, source: str, target: str, deliver: Callable[[Any], None]
    ) -> None:
        self._agenda = agenda
        self._network = network
        self._source, self._target = source, target
        self._deliver = deliver
        self._queue: deque[Any] = deque()
        self._last_s = 0.0
        self._closed = False

    def send(self, message: Any, extra_s: float = 0.0) -> None:
        if self._closed:
            return
        if self._queue or not self._network.passes(self._source, self._target):
            self._queue.append(message)
            self._network.wait(self, True)
            return
        at_s = self._agenda.now + self._network.latency_s(self._source, self._target) + extra_s
        self._last_s = max(self._last_s, at_s)
        self._agenda.at(self._last_s, self._arrive, message)

    def flush(self) -> None:
        if not self._network.passes(self._source, self._target):
            return
        queue, self._queue = self._queue, deque()
        self._network.wait(self, False)
        for message in queue:
            self.send(message)

    def close(self) -> None:
        """Nothing more is delivered, also of what is on its way."""
        self._closed = True
        self._queue.clear()
        self._network.wait(self, False)

    def _arrive(self, message: Any) -> None:
        if not self._closed:
            self._deliver(message)
