"""The real fleet machine over a fluid: what a broadcast takes when links carry something else than they declared.

    core.Fleet ──Assign──▶ who fetches what from whom ──▶ every 20 ms: max-min fair rates ──▶ whole chunks
        ▲                                                                                         │
        └───── holdings once a second, sums of hops every two seconds, as relayd tells them ◀─────┘

Uplinks and downlinks are shared max-min fairly, by the stripes' weights, by the hops that have something to send, ACKs
take their part of an uplink. A hop whose parent has changed carries nothing for `MOVE_S`. What was on its way is taken,
or, where that is not so (`drains=False`: gRPC), sent again. It shares no code with the planner's formulas.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chappe.core import events as ev
from chappe.core.effects import Assign, Effect, Log, WakeAt
from chappe.core.fleet import Fleet, FleetConfig
from chappe.core.invariants import broken
from chappe.core.publication import Publication
from chappe.core.ranges import RangeSet
from chappe.core.reasons import ParentLossReason
from chappe.core.state import FleetState
from chappe.core.stripemap import StripeMap
from chappe.planning.stripes import ACK_SHARE, HEADER_SHARE

TICK_S = 0.02
MOVE_S = 0.3
"""To be told, to dial, and to get up to speed."""
IN_FLIGHT_BYTES = 128 << 10
"""At most, of what a parent has sent when its child leaves it."""
HOLDING_S, REPORT_S = 1.0, 2.0
STALL_S = 3.0
OBJECT, ROOT = "xxh3:object", "xxh3:root"


@dataclass(frozen=True, slots=True)
class Line:
    """A host's links, bytes per second: what it declares, and what they carry."""

    name: str
    up: float
    down: float
    says_up: float
    says_down: float


@dataclass(slots=True)
class _Hop:
    parent: str
    since_s: float
    stalled_s: float = 0.0
    credit: float = 0.0
    at: int = 0  # into the arrivals of the parent
    moved_bytes: float = 0.0  # not reported yet
    busy_s: float = 0.0


@dataclass(slots=True)
class _Node:
    line: Line
    held: RangeSet = field(default_factory=RangeSet)
    arrivals: list[int] = field(default_factory=list)
    parents: dict[int, str] = field(default_factory=dict)
    stripes: StripeMap = field(default_factory=StripeMap)
    done_s: float | None = None
    receives: float = 0.0
    epochs: dict[int, int] = field(default_factory=dict)
    dead: bool = False
    claims: str = ""  # "all", "half" of it, or "nothing", whatever it holds; "silence"; "full": its disk


@dataclass(slots=True)
class Outcome:
    """Seconds until each worker had everything, bytes sent twice, and what the fleet machine logged."""

    done_s: dict[str, float]
    twice_bytes: float
    logs: Counter[str]
    rates: dict[str, float]
    downs: dict[str, float]
    stripes: int

    @property
    def t_all_s(self) -> float:
        return max(self.done_s.values())


class FleetFluid:
    """One broadcast. `worker_id` and name of a host are the same."""

    def __init__(
        self,
        payload_bytes: int,
        b0: float,
        lines: Sequence[Line],
        *,
        says_b0: float | None = None,
        chunk_bytes: int = 1 << 16,
        config: FleetConfig | None = None,
        topology: ev.Topology = ev.Topology.STRIPED,
        check: bool = False,
        drains: bool = True,
    ) -> None:
        self.fleet = Fleet(config or FleetConfig("run"))
        self.chunk_bytes = chunk_bytes
        self.total = -(-payload_bytes // chunk_bytes)
        self.payload_bytes = payload_bytes
        self.now = 100.0
        self.start_s = self.now
        self.b0 = b0
        self.twice_bytes = 0.0
        self.logs: Counter[str] = Counter()
        self.trail: list[str] = []
        self._topology = topology
        self._check = check
        self._drains = drains
        self._wake: float | None = None
        self._pending: list[tuple[float, Assign]] = []
        self._hops: dict[tuple[int, str], _Hop] = {}
        self.nodes = {line.name: _Node(line) for line in lines}
        everything = RangeSet([(0, self.total)])
        self.origin = _Node(Line("origin", b0, b0, says_b0 or b0, b0), everything, list(range(self.total)))
        self._owner: tuple[StripeMap, list[int]] | None = None
        self._sessions = {name: i + 1 for i, name in enumerate(("origin", *self.nodes))}

    # ---- the fleet machine ----

    def tell(self, event: ev.Event) -> None:
        effects: list[Effect] = self.fleet.handle(event, self.now)
        if self._check:
            problems = broken(self.fleet)
            assert not problems, problems
        for effect in effects:
            match effect:
                case Assign():
                    self._assigned(effect)
                case WakeAt(time_s):
                    self._wake = time_s
                case Log(name, reason, fields):
                    self.logs[name] += 1
                    self.trail.append(f"{self.now - self.start_s:6.2f} {name} {reason} {fields}")

    @property
    def publication(self) -> Publication:
        return self.fleet.state.publications[OBJECT]

    def _assigned(self, assign: Assign) -> None:
        node = self.nodes.get(assign.worker_id)
        if node is None:
            return
        wanted = {e.stripe: e for e in assign.edges if e.parent is not None}
        other_map = any(e.stripes != node.stripes for e in assign.edges)
        for stripe in [s for s, name in self._hops if name == assign.worker_id and s not in wanted]:
            del self._hops[stripe, assign.worker_id]
        for edge in assign.edges:
            node.stripes = edge.stripes
            node.epochs[edge.stripe] = edge.epoch
            if edge.parent is None:
                continue
            key = (edge.stripe, assign.worker_id)
            hop = self._hops.get(key)
            if hop is not None and hop.parent == edge.parent.worker_id and not other_map:
                continue
            if hop is not None and not self._drains and self._has_more(hop, edge.stripe, node):
                self.twice_bytes += min(IN_FLIGHT_BYTES, self.chunk_bytes + hop.credit)
            delay = MOVE_S if hop is not None else 0.0
            self._hops[key] = _Hop(edge.parent.worker_id, self.now + delay)

    def _greet(self, line: Line, role: ev.Role, **more: Any) -> None:
        session = self._sessions[line.name]
        address = f"{line.name}:1"
        self.tell(ev.Hello(line.name, session, role, line.name, 1, address, line.says_up, line.says_down, **more))

    def join(self, line: Line, *, stripes: bool = True) -> None:
        """One more relay, in the middle of it; one that does not know stripes is of an older release."""
        self.nodes[line.name] = _Node(line)
        self._sessions[line.name] = len(self._sessions) + 1
        self._greet(line, ev.Role.RELAY, stripes=stripes)

    def begin(self) -> None:
        self._greet(self.origin.line, ev.Role.ORIGIN)
        for node in self.nodes.values():
            self._greet(node.line, ev.Role.RELAY)
        size = self.payload_bytes
        self.tell(ev.PublishRequested(1, "origin", OBJECT, 1, 1.0, self._topology, 0, size, 0.0))
        self.tell(ev.Offered("origin", 1, OBJECT, 1, "full", size, size, self.total))
        self.tell(ev.RootAnnounced("origin", 1, OBJECT, ROOT))

    # ---- the bytes ----

    def _stripe_of(self, stripes: StripeMap) -> list[int]:
        if self._owner is None or self._owner[0] != stripes:
            owner = [0] * self.total
            for stripe in range(len(stripes.weights)):
                for a, b in stripes.within(stripe, [(0, self.total)], self.total):
                    owner[a:b] = [stripe] * (b - a)
            self._owner = (stripes, owner)
        return self._owner[1]

    def _of(self, name: str) -> _Node:
        return self.origin if name == "origin" else self.nodes[name]

    def _next(self, hop: _Hop, stripe: int, node: _Node) -> int | None:
        arrivals, owner = self._of(hop.parent).arrivals, self._stripe_of(node.stripes)
        while hop.at < len(arrivals):
            chunk = arrivals[hop.at]
            if owner[chunk] == stripe and chunk not in node.held:
                return chunk
            hop.at += 1
        return None

    def _has_more(self, hop: _Hop, stripe: int, node: _Node) -> bool:
        return self._next(hop, stripe, node) is not None

    def _rates(self, going: Mapping[tuple[int, str], _Hop]) -> dict[tuple[int, str], float]:
        """Max-min fair by the stripes' weights, as turns do: all grow until a link is full; there its hops stay."""
        room_up = {
            n.line.name: max(1.0, n.line.up - ACK_SHARE * n.receives) for n in (self.origin, *self.nodes.values())
        }
        room_down = {name: node.line.down for name, node in self.nodes.items()}
        rates = dict.fromkeys(going, 0.0)
        weight = {key: self.nodes[key[1]].stripes.weights[key[0]] for key in going}
        growing = dict(going)
        while growing:
            ups: Counter[str] = Counter()
            downs: Counter[str] = Counter()
            for key, hop in growing.items():
                ups[hop.parent] += weight[key]
                downs[key[1]] += weight[key]
            step = min(
                min(room_up[n] / count for n, count in ups.items()),
                min(room_down[n] / count for n, count in downs.items()),
            )
            for key in growing:
                rates[key] += step * weight[key]
            for n, count in ups.items():
                room_up[n] -= step * count
            for n, count in downs.items():
                room_down[n] -= step * count
            growing = {
                key: hop for key, hop in growing.items() if room_up[hop.parent] > 1.0 and room_down[key[1]] > 1.0
            }
        return rates

    def _flow(self) -> None:
        going = {
            key: hop
            for key, hop in self._hops.items()
            if not (self._of(hop.parent).dead or self._of(hop.parent).claims == "all" or self.nodes[key[1]].dead)
            and hop.since_s <= self.now
            and self._has_more(hop, key[0], self.nodes[key[1]])
        }
        rates = self._rates(going)
        whole = self.chunk_bytes * (1 + HEADER_SHARE)
        receives: dict[str, float] = defaultdict(float)
        arrived: list[tuple[str, int]] = []
        for key, hop in going.items():
            node, rate = self.nodes[key[1]], rates[key]
            receives[key[1]] += rate
            hop.credit += rate * TICK_S
            hop.busy_s += TICK_S
            while hop.credit >= whole and (chunk := self._next(hop, key[0], node)) is not None:
                hop.credit -= whole
                hop.moved_bytes += self.chunk_bytes
                node.held.add(chunk, chunk + 1)
                arrived.append((key[1], chunk))
        for key, hop in self._hops.items():
            if key not in going:
                hop.credit = 0.0
        for name, chunk in arrived:  # whole chunks are passed on from the next tick on
            self.nodes[name].arrivals.append(chunk)
        for name, node in self.nodes.items():
            node.receives = receives[name]

    # ---- what goes wrong ----

    def session(self, name: str) -> int:
        """Of its present stream to the coordinator."""
        return self._sessions[name]

    def kill(self, name: str) -> None:
        """From now on it sends nothing and says nothing; its stream to the coordinator breaks."""
        self._of(name).dead = True
        for key in [key for key in self._hops if key[1] == name]:
            del self._hops[key]
        self.tell(ev.SessionLost(name, self._sessions[name]))

    def restart_coordinator(self) -> None:
        """A new one, with what is stored; everybody who lives comes back with all that it has."""
        self.fleet = Fleet(self.fleet.config, FleetState.from_json(self.fleet.state.to_json()))
        self._wake = None
        self.tell(ev.Tick())
        for name, node in [("origin", self.origin), *self.nodes.items()]:
            if node.dead:
                continue
            self._sessions[name] += 1000
            edges = [
                ev.HeldEdge(OBJECT, stripe, hop.parent, node.epochs[stripe])
                for (stripe, child), hop in self._hops.items()
                if child == name
            ]
            role = ev.Role.ORIGIN if name == "origin" else ev.Role.RELAY
            held = () if name == "origin" else (self._holding(node),)
            self._greet(node.line, role, holdings=held, edges=tuple(edges))

    def _complain(self) -> None:
        """A child that gets nothing for STALL_S from a parent that says it has more."""
        for (stripe, child), hop in list(self._hops.items()):
            parent, node = self._of(hop.parent), self.nodes[child]
            gives_nothing = parent.dead or parent.claims == "all"
            if not gives_nothing or len(node.held) == self.total or hop.since_s > self.now:
                hop.stalled_s = self.now
            elif self.now - max(hop.stalled_s, hop.since_s) >= STALL_S:
                hop.stalled_s = self.now
                edge = ev.HeldEdge(OBJECT, stripe, hop.parent, node.epochs[stripe])
                self.tell(ev.ParentLost(child, self._sessions[child], edge, ParentLossReason.STALLED))

    # ---- what is told ----

    def _holding(self, node: _Node) -> ev.Holding:
        if node.claims == "nothing" and len(node.held) < self.total:
            return ev.Holding(OBJECT, ev.ObjectState.RECEIVING, 0, "", (), self.total)
        if node.claims == "half" and len(node.held) < self.total:
            least = [(a, a + (b - a) // 2) for a, b in node.held.ranges() if b - a > 1]
            return ev.Holding(OBJECT, ev.ObjectState.RECEIVING, 0, "", tuple(least), self.total)
        if node.claims == "full" and len(node.held) < self.total:
            return ev.Holding(OBJECT, ev.ObjectState.DISK_FULL, 0, "", node.held.ranges(), self.total, "no room")
        if node.claims == "all":
            return ev.Holding(OBJECT, ev.ObjectState.RECEIVED, 0, "", ((0, self.total),), self.total)
        if len(node.held) == self.total:
            return ev.Holding(OBJECT, ev.ObjectState.INSTALLED, 1, ROOT, ((0, self.total),), self.total)
        return ev.Holding(OBJECT, ev.ObjectState.RECEIVING, 0, "", node.held.ranges(), self.total)

    def _tell_holding(self, name: str) -> None:
        node = self.nodes[name]
        if node.claims != "silence" or len(node.held) == self.total:
            self.tell(ev.HoldingChanged(name, self._sessions[name], self._holding(node)))

    def _tell_links(self, name: str) -> None:
        sums: dict[tuple[bool, str], list[float]] = {}
        streams = {True: 0, False: 0}
        for (_, child), hop in self._hops.items():
            for sending, mine, peer in ((True, hop.parent, child), (False, child, hop.parent)):
                if mine != name or hop.moved_bytes == 0:
                    continue
                streams[sending] += 1
                entry = sums.setdefault((sending, peer), [0.0, 0.0])
                entry[0] += hop.moved_bytes
                entry[1] += hop.busy_s
        samples = tuple(
            ev.LinkSample(peer, sending, moved / busy_s, busy_s, streams[sending], int(moved))
            for (sending, peer), (moved, busy_s) in sums.items()
        )
        if samples:
            self.tell(ev.LinksMeasured(name, self._sessions[name], samples))

    def _tell_all(self, before_s: float) -> None:
        for i, name in enumerate(("origin", *self.nodes)):
            if self._of(name).dead:
                continue
            offset = i / (1 + len(self.nodes))
            if name != "origin" and _passes(before_s, self.now, HOLDING_S, offset * HOLDING_S):
                if self.nodes[name].done_s is None:
                    self._tell_holding(name)
                self.tell(ev.Heard(name, self._sessions[name]))
            elif name == "origin" and _passes(before_s, self.now, HOLDING_S, 0.0):
                self.tell(ev.Heard(name, self._sessions[name]))
        if _passes(before_s, self.now, REPORT_S, 0.0):
            for name in ("origin", *self.nodes):
                if not self._of(name).dead:
                    self._tell_links(name)
            for hop in self._hops.values():
                if hop.moved_bytes:  # else its seconds are told with its next chunk, as meters do
                    hop.moved_bytes = hop.busy_s = 0.0

    def step(self) -> None:
        """One tick."""
        before_s, self.now = self.now, self.now + TICK_S
        self._flow()
        for name, node in self.nodes.items():
            if node.done_s is None and len(node.held) == self.total:
                node.done_s = self.now - self.start_s
                self._tell_holding(name)
        self._tell_all(before_s)
        self._complain()
        if self._wake is not None and self.now >= self._wake:
            self._wake = None
            self.tell(ev.Tick())

    @property
    def over(self) -> bool:
        return all(node.done_s is not None or node.dead or node.claims == "all" for node in self.nodes.values())

    def until(self, reached: Callable[[], bool], most_s: float = 600.0) -> None:
        """Step by step. Raises TimeoutError."""
        while not reached():
            self.step()
            if self.now - self.start_s > most_s:
                raise TimeoutError(f"not over after {most_s} s: " + "\n".join(self.trail[-20:]))

    def run(self, most_s: float = 600.0) -> Outcome:
        """Until everybody who lives has everything, from the beginning or from where it is. Raises TimeoutError."""
        if OBJECT not in self.fleet.state.publications:
            self.begin()
        stripes = len(self.publication.stripes.weights)
        self.until(lambda: self.over, most_s)
        done = {name: node.done_s for name, node in self.nodes.items() if node.done_s is not None}
        workers = self.fleet.state.workers
        return Outcome(
            done,
            self.twice_bytes,
            self.logs,
            {name: workers[name].links.up.bytes_per_s for name in self.nodes},
            {name: workers[name].links.down.bytes_per_s for name in self.nodes},
            stripes,
        )


def _passes(before_s: float, now: float, every_s: float, offset_s: float) -> bool:
    return (before_s - offset_s) // every_s != (now - offset_s) // every_s
