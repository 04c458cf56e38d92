"""Random fleets, random faults, random lies: the invariants hold after every event, and everything ends well.

A seed replays its run: `Storm(seed).run()`. The storm keeps the order that streams keep (a worker says nothing before
its Hello), and nothing else.
"""

from __future__ import annotations

import random
import sys

import pytest

from chappe.core import events as ev
from chappe.core.effects import Assign, PublishAccepted, PublishFinished, RequestRefused, StartProbe, WakeAt
from chappe.core.fleet import Fleet, FleetConfig
from chappe.core.invariants import History, broken
from chappe.core.publication import LIVE, Phase
from chappe.core.reasons import ParentLossReason
from tests.core.written import Written, in_any_order

CHUNKS = 40


class Node:
    def __init__(self, name: str, role: ev.Role) -> None:
        self.worker_id, self.name, self.role = f"id-{name}", name, role
        self.generation = 1
        self.session: int | None = None
        self.edges: tuple[ev.HeldEdge, ...] = ()
        self.fallbacks: list[ev.HeldEdge] = []
        self.targets: dict[str, tuple[int, str]] = {}
        self.held: dict[str, int] = {}  # object -> chunks
        self.landed: dict[str, tuple[int, str]] = {}
        self.no_dial_in = False

    def holding(self, object_id: str) -> ev.Holding:
        held = self.held.get(object_id, 0)
        chunks = ((0, held),) if held else ()
        if object_id in self.landed:
            version, root = self.landed[object_id]
            return ev.Holding(object_id, ev.ObjectState.INSTALLED, version, root, ((0, CHUNKS),), CHUNKS)
        state = ev.ObjectState.RECEIVED if held == CHUNKS else ev.ObjectState.RECEIVING
        return ev.Holding(object_id, state, 0, "", chunks, CHUNKS)


class Storm:
    topologies = (ev.Topology.CHAINS, ev.Topology.CHAINS, ev.Topology.STAR)
    factor = 1  # of the payloads
    ups: tuple[float | None, ...] = (None, 1e6, 5e6, 2e7)
    downs: tuple[float | None, ...] = (None, 1e6, 5e6)

    def __init__(self, seed: int) -> None:
        self.seed, self.random = seed, random.Random(seed)
        self.config = FleetConfig("run")
        self.fleet = Fleet(self.config)
        self.history = History()
        self.written = Written()
        self.now = 50.0
        self.wake: float | None = None
        self.sessions = 0
        self.requests = 0
        self.version = 0
        relays = self.random.randint(1, 9)
        self.relays = [Node(f"r{i}", ev.Role.RELAY) for i in range(relays)]
        self.origins = [Node(f"o{i}", ev.Role.ORIGIN) for i in range(2)]
        self.roots: dict[str, str] = {}  # of the objects that are published, as their origins know them
        self.versions: dict[str, int] = {}
        self.owner: dict[str, Node] = {}
        self.waiting: set[int] = set()
        self.finished: set[int] = set()
        self.trail: list[str] = []
        self.probes: list[StartProbe] = []
        for node in self.nodes:
            node.no_dial_in = self.random.random() < 0.15

    @property
    def nodes(self) -> list[Node]:
        return [*self.relays, *self.origins]

    def tell(self, event: ev.Event) -> None:
        self.trail.append(f"{self.now:.2f} {event}")
        effects = self.fleet.handle(event, self.now)
        self.written.take(effects, self.fleet.state)
        problems = broken(self.fleet) + self.history.observe(self.fleet, effects)
        assert not problems, "\n".join([*self.trail[-25:], *problems])
        for effect in effects:
            match effect:
                case WakeAt(time_s):
                    self.wake = time_s
                case Assign():
                    self.assigned(effect)
                case StartProbe():
                    assert not any(p.phase in LIVE and not p.settled for p in self.fleet.state.publications.values())
                    self.probes.append(effect)
                case PublishAccepted(request, version, _):
                    self.waiting.add(request)
                    self.version = max(self.version, version)
                case PublishFinished(_, requests):
                    assert self.waiting.issuperset(requests)
                    self.waiting -= set(requests)
                    self.finished |= set(requests)
                case RequestRefused(request):
                    self.waiting.discard(request)

    def assigned(self, assign: Assign) -> None:
        node = next(n for n in self.nodes if n.worker_id == assign.worker_id)
        assert assign.session == node.session
        assert assign.generation == node.generation
        node.targets = {t.object_id: (t.version, t.root) for t in assign.targets}
        node.held = {o: n for o, n in node.held.items() if o in node.targets or o in node.landed}
        node.edges = tuple(
            ev.HeldEdge(e.object_id, e.stripe, e.parent.worker_id, e.epoch) for e in assign.edges if e.parent
        )
        node.fallbacks = [
            ev.HeldEdge(e.object_id, e.stripe, f.parent.worker_id, f.epoch) for e in assign.edges for f in e.fallbacks
        ]

    # ---- what can happen ----

    def hello(self, node: Node) -> None:
        self.sessions += 1
        node.session = self.sessions
        holdings = tuple(node.holding(o) for o in {**node.held, **node.landed})
        self.tell(
            ev.Hello(
                node.worker_id,
                node.session,
                node.role,
                node.name,
                node.generation,
                f"{node.name}:{node.generation}",
                self.random.choice(self.ups),
                self.random.choice(self.downs),
                holdings=holdings if node.role is ev.Role.RELAY else (),
                edges=node.edges,
                no_dial_in=node.no_dial_in,
            )
        )

    def connected(self, nodes: list[Node]) -> list[Node]:
        return [n for n in nodes if n.session is not None]

    def do_join_or_break(self) -> None:
        node = self.random.choice(self.nodes)
        if node.session is None or self.random.random() < 0.1:
            if self.random.random() < 0.4:
                node.generation += 1
                node.edges = ()
            self.hello(node)
        else:
            session, node.session = node.session, None
            self.tell(ev.SessionLost(node.worker_id, session))

    def do_complain(self) -> None:
        edges = [(n, e) for n in self.connected(self.relays) for e in (*n.edges, *n.fallbacks)]
        if edges:
            node, edge = self.random.choice(edges)
            assert node.session is not None
            reason = self.random.choice(list(ParentLossReason))
            self.tell(ev.ParentLost(node.worker_id, node.session, edge, reason))

    def do_connect(self) -> None:
        edges = [(n, e) for n in self.connected(self.relays) for e in (*n.edges, *n.fallbacks)]
        if edges:
            node, edge = self.random.choice(edges)
            assert node.session is not None
            self.tell(ev.ParentConnected(node.worker_id, node.session, edge))

    def do_measure(self) -> None:
        """Claims about hops: true, false, contradictory, and of hops that are not there."""
        for _ in range(3):
            edges = [(n, e) for n in self.connected(self.relays) for e in n.edges]
            if not edges:
                return
            node, edge = self.random.choice(edges)
            got, sent = (self.random.choice([1e4, 1e6, 4e6, 5e6, 2e7, 1e12]) for _ in range(2))
            parent = next((n for n in self.connected(self.nodes) if n.worker_id == edge.parent), None)
            busy_s = self.random.choice([0.1, 2.0, 4.0])
            if parent is not None and parent.session is not None and self.random.random() < 0.7:
                streams = self.random.randint(1, 3)
                sample = ev.LinkSample(node.worker_id, True, sent, busy_s, streams)
                self.tell(ev.LinksMeasured(parent.worker_id, parent.session, (sample,)))
            if node.session is not None:
                peer = self.random.choice([edge.parent, edge.parent, edge.parent, "id-r0", "nobody"])
                self.tell(ev.LinksMeasured(node.worker_id, node.session, (ev.LinkSample(peer, False, got, busy_s),)))

    def do_dial(self) -> None:
        node = self.random.choice(self.nodes)
        if node.session is not None:
            self.tell(ev.DialedBack(node.worker_id, node.session, self.random.random() < 0.6))

    def do_probe(self) -> None:
        if self.probes:
            probe = self.random.choice(self.probes[-3:])
            node = next(n for n in self.nodes if n.worker_id == probe.worker_id)
            rates = [self.random.choice([None, 1e5, 5e6, 1e12]) for _ in range(2)]
            session = self.random.choice([probe.session, node.session or probe.session])
            error = self.random.choice(["", "", "busy"])
            self.tell(ev.ProbeEnded(probe.worker_id, session, probe.order, rates[0], rates[1], 2.0, error))

    def do_progress(self) -> None:
        for node in self.connected(self.relays):
            for object_id in list(node.targets):
                if object_id in node.targets and self.random.random() < 0.5:
                    self.advance(node, object_id, self.random.choice([3, 10, CHUNKS]))

    def advance(self, node: Node, object_id: str, chunks: int) -> None:
        version, root = node.targets[object_id]
        node.held[object_id] = min(CHUNKS, node.held.get(object_id, 0) + chunks)
        if node.held[object_id] == CHUNKS and root and self.random.random() < 0.7:
            node.landed[object_id] = (version, root)
        assert node.session is not None
        self.tell(ev.HoldingChanged(node.worker_id, node.session, node.holding(object_id)))

    def do_trouble(self) -> None:
        """Full disks, failing hooks, rot, and lies."""
        nodes = [(n, o) for n in self.connected(self.relays) for o in n.targets]
        if not nodes:
            return
        node, object_id = self.random.choice(nodes)
        state = self.random.choice(list(ev.ObjectState))
        version, root = self.random.choice([(0, ""), node.targets[object_id], (7, "x:lie")])
        chunks = self.random.choice([(), ((0, 5),), ((0, 5), (3, 9)), ((0, 9999),), ((0, CHUNKS),)])
        total = self.random.choice([None, CHUNKS, 3])
        assert node.session is not None
        holding = ev.Holding(object_id, state, version, root, chunks, total, "trouble")
        self.tell(ev.HoldingChanged(node.worker_id, node.session, holding))

    def do_publish(self) -> None:
        origins = self.connected(self.origins)
        if not origins:
            return
        origin = self.random.choice(origins)
        self.requests += 1
        version = self.random.choice([0, 0, 0, self.version, self.version + 2])
        object_id = self.random.choice([f"obj{self.requests}", f"obj{max(1, self.requests - 1)}"])
        self.owner.setdefault(object_id, origin)
        topology = self.random.choice(self.topologies)
        until, chains = self.random.choice([0.5, 1.0]), self.random.choice([0, 0, 2])
        before = set(self.waiting)
        self.tell(
            ev.PublishRequested(self.requests, origin.worker_id, object_id, version, until, topology, chains, 1000, 0.1)
        )
        if self.waiting - before and self.random.random() < 0.9:
            self.offer(origin, object_id)

    def offer(self, origin: Node, object_id: str) -> None:
        publication = self.fleet.state.publications.get(object_id)
        if publication is None or origin.session is None:
            return
        size, root = self.random.choice([1000, 1000, 400]) * self.factor, publication.root
        self.versions[object_id] = publication.version
        self.tell(
            ev.Offered(
                origin.worker_id, origin.session, object_id, publication.version, "full", size, size, CHUNKS, root
            )
        )

    def do_origin(self) -> None:
        mine = [(o, object_id) for object_id, o in self.owner.items() if o.session is not None]
        if not mine:
            return
        origin, object_id = self.random.choice(mine[-4:])
        assert origin.session is not None
        match self.random.randrange(8):
            case 0:
                self.tell(ev.SourceFailed(origin.worker_id, origin.session, object_id, "changed"))
            case 1 | 2:
                self.offer(origin, object_id)
            case 3:
                self.tell(ev.RootAnnounced(origin.worker_id, origin.session, object_id, "x:another"))
            case _:
                self.tell(ev.RootAnnounced(origin.worker_id, origin.session, object_id, f"x:{object_id}"))

    def do_people(self) -> None:
        self.requests += 1
        name = self.random.choice(self.relays).name
        match self.random.randrange(5):
            case 0:
                self.tell(ev.CancelRequested(self.requests, self.random.randint(0, self.version + 1)))
            case 1:
                self.tell(ev.DrainRequested(self.requests, name))
            case 2:
                self.tell(ev.ForgetRequested(self.requests, name))
            case 3:
                self.tell(ev.PublishWatcherLeft(self.random.randint(1, self.requests)))
            case _:
                node = self.random.choice(self.nodes)
                if node.session is not None:
                    self.tell(ev.LeaveRequested(node.worker_id, node.session))

    def do_coordinator(self) -> None:
        """Killed: the next one finds what is written."""
        state = self.written.state()
        for object_id, publication in state.publications.items():
            assert in_any_order(publication.to_json()) == in_any_order(self.written.document(object_id))
        self.written.restarted(state)
        self.fleet = Fleet(self.config, state)
        self.wake = None
        for node in self.nodes:
            node.session = None
        self.waiting.clear()
        self.tell(ev.Tick())
        for node in self.nodes:
            if self.random.random() < 0.8:
                self.hello(node)

    def do_time(self, most_s: float = 4.0) -> None:
        end = self.now + self.random.uniform(0, most_s)
        silent = {n for n in self.nodes if self.random.random() < 0.1}
        while self.now < end:
            self.now = min(end, self.now + 0.5, max(self.now, self.wake) if self.wake is not None else end)
            for node in self.connected(self.nodes):
                if node not in silent and node.session is not None:
                    self.tell(ev.Heard(node.worker_id, node.session))
            if self.wake is not None and self.now >= self.wake:
                self.wake = None
                self.tell(ev.Tick())
        for node in self.nodes:  # whose stream the coordinator has closed
            worker = self.fleet.state.workers.get(node.worker_id)
            if worker is None or worker.session != node.session:
                node.session = None

    def run(self, steps: int) -> None:
        for node in self.nodes:
            self.hello(node)
        self.do_publish()
        moves = [
            self.do_join_or_break,
            self.do_complain,
            self.do_connect,
            self.do_progress,
            self.do_trouble,
            self.do_publish,
            self.do_origin,
            self.do_people,
            self.do_coordinator,
            self.do_time,
            self.do_measure,
            self.do_dial,
            self.do_probe,
        ]
        weights = [6, 4, 4, 8, 2, 2, 4, 1, 1, 4, 6, 2, 1]
        for _ in range(steps):
            self.random.choices(moves, weights)[0]()

    def play(self, rounds: int = 60) -> None:
        """A storm and the calm after it. Where they break off, the last that happened is on stderr."""
        whole = False
        try:
            self.run(rounds)
            self.calm()
            whole = True
        finally:
            if not whole:
                sys.stderr.write("\n".join([f"seed {self.seed}", *self.trail[-30:], ""]))

    def calm(self) -> None:
        """Everybody is back and honest, and one more version is published: all must have it."""
        for node in self.relays:
            node.generation += 1
            node.edges = ()
            self.hello(node)
        origin = self.origins[0]
        origin.generation += 1
        self.hello(origin)
        self.requests += 1
        request = self.requests
        topology = self.topologies[0]
        everyone = ev.PublishRequested(request, origin.worker_id, "last", 0, 1.0, topology, 0, 1000, 0.0)
        self.tell(everyone)
        version = self.fleet.state.publications["last"].version
        size = 1000 * self.factor
        self.tell(ev.Offered(origin.worker_id, origin.session or 0, "last", version, "full", size, size, CHUNKS))
        self.tell(ev.RootAnnounced(origin.worker_id, origin.session or 0, "last", "x:last"))
        for _ in range(4):
            for node in self.relays:
                for object_id in list(node.targets):
                    if object_id not in node.targets:
                        continue  # withdrawn by what the one before has brought about
                    version, root = node.targets[object_id]
                    node.held[object_id] = CHUNKS
                    if root:
                        node.landed[object_id] = (version, root)
                    assert node.session is not None
                    self.tell(ev.HoldingChanged(node.worker_id, node.session, node.holding(object_id)))
        last = self.fleet.state.publications["last"]
        assert last.phase is Phase.CLOSED, "\n".join(self.trail[-40:])
        assert last.installed == last.targeted == len(self.relays)
        assert request in self.finished


@pytest.mark.parametrize("block", range(6))
def test_storms(block: int) -> None:
    for seed in range(block * 20, block * 20 + 20):
        storm = Storm(seed)
        storm.play()
