"""Plays a text scenario against the fleet machine: one verb a handler, effects as text. See tests/scenarios/README.md.

    verb argument key=value ...        an event; `#` starts a comment line
    ----
      effects                          what the machine answers, or nothing

Workers are named by their names; the object of version N is `oN`, its root `x:N`. Every event is followed by a check of
all invariants. Housekeeping (persist, wake-ups, heartbeats, welcome) is not shown.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from chappe.core import effects as fx
from chappe.core import events as ev
from chappe.core.fleet import Fleet, FleetConfig, FleetState
from chappe.core.invariants import History, broken
from chappe.core.reasons import ParentLossReason
from chappe.core.status import status_view
from chappe.units import format_rate, parse_rate

CHUNKS = 100
PAYLOAD_BYTES = 1_000_000


@dataclass
class Party:
    """One node as the script plays it."""

    name: str
    role: ev.Role
    generation: int = 1
    session: int = 0
    up: float | None = 12.5e6
    down: float | None = 12.5e6
    silent: bool = False
    edges: dict[str, ev.HeldEdge] = field(default_factory=dict)  # by object, as assigned last
    told: int = 0
    holdings: dict[str, ev.Holding] = field(default_factory=dict)

    @property
    def worker_id(self) -> str:
        return f"id-{self.name}"


class Script:
    def __init__(self) -> None:
        self.config = FleetConfig("run", probes=False)
        self.fleet = Fleet(self.config)
        self.history = History()
        self.now = 100.0
        self.wake: float | None = None
        self.parties: dict[str, Party] = {}
        self.sessions = 0
        self.requests: dict[int, str] = {}
        self.orders: dict[str, str] = {}  # probes: order, who reports
        self.lines: list[str] = []

    # ---- playing ----

    def play(self, text: str) -> str:
        out: list[str] = []
        skipping = False
        for line in text.splitlines():
            if line.strip() == "----":
                skipping = True
            elif skipping and line.startswith("  "):
                continue
            else:
                skipping = False
                out.append(line)
                if line.strip() and not line.startswith("#"):
                    self.lines = []
                    self.run(line.split())
                    out.append("----")
                    out.extend("  " + shown for shown in self.lines)
        return "\n".join(out) + "\n"

    def run(self, words: list[str]) -> None:
        verb, *rest = words
        options = dict(word.split("=", 1) for word in rest if "=" in word)
        handler: Callable[..., None] = getattr(self, "do_" + verb.replace("-", "_"))
        handler(*[word for word in rest if "=" not in word], **options)

    def tell(self, event: ev.Event) -> None:
        effects = self.fleet.handle(event, self.now)
        for effect in effects:
            self.show(effect)
        problems = broken(self.fleet) + self.history.observe(self.fleet, effects)
        assert not problems, f"after {event}: {problems}"
        stored = json.loads(json.dumps(self.fleet.state.to_json()))
        assert FleetState.from_json(stored).to_json() == stored

    def show(self, effect: fx.Effect) -> None:
        match effect:
            case fx.WakeAt(time_s):
                self.wake = time_s
            case fx.Assign():
                self.show_assign(effect)
            case fx.Log(event, reason, fields):
                shown = " ".join(f"{k}={' '.join(v) if isinstance(v, list) else v}" for k, v in fields.items())
                self.lines.append(f"log {event}: {reason} {shown}".rstrip())
            case fx.Count(name, labels):
                self.lines.append(f"count {name} " + " ".join(f"{k}={v}" for k, v in labels))
            case fx.PersistWorker() | fx.PersistPublication() | fx.PersistEpoch() | fx.Welcome() | fx.PublishProgress():
                pass
            case fx.Refuse(worker_id, _, reason):
                self.lines.append(f"refuse {worker_id}: {reason}")
            case fx.StartProbe(worker_id, _, _, order, peer):
                self.orders[order] = self.name(worker_id)
                self.lines.append(f"{order}: {self.name(worker_id)} dials {peer.name}")
            case fx.Replace(worker_id, session):
                self.lines.append(f"close session {session} of {self.name(worker_id)}")
            case fx.Release(worker_id, _):
                self.lines.append(f"release {self.name(worker_id)}")
            case fx.ForgetWorker(worker_id):
                self.lines.append(f"forget {self.name(worker_id)}")
            case fx.PublishAccepted(request, version, chunk_bytes, object_id, root):
                resume = f", build {object_id} with root {root}" if object_id else ""
                self.lines.append(
                    f"{self.requests[request]}: accepted version {version}, chunks of {chunk_bytes}{resume}"
                )
            case fx.PublishAlready(request, version, root):
                self.lines.append(f"{self.requests[request]}: already version {version} with root {root}")
            case fx.PublishFinished(_, requests):
                self.lines.extend(f"{self.requests[r]}: finished" for r in requests)
            case fx.RequestRefused(request, kind, message):
                self.lines.append(f"{self.requests[request]}: {kind.value}: {message}")
            case fx.RequestDone(request):
                self.lines.append(f"{self.requests[request]}: done")

    def show_assign(self, assign: fx.Assign) -> None:
        name = self.name(assign.worker_id)
        party = self.parties[name]
        party.told = assign.epoch
        roots = {t.object_id: t.root for t in assign.targets}
        edges = {e.object_id: e for e in assign.edges}
        if not roots:
            self.lines.append(f"assign {name}: nothing")
        for object_id, root in roots.items():
            edge = edges.get(object_id)
            text = f"assign {name}: {object_id}" + ("" if root else " (no root)")
            if edge is None:
                text += " no place"
                party.edges.pop(object_id, None)
            else:
                if party.role is ev.Role.RELAY:
                    parent = f"{edge.parent.name}/{edge.slot}" if edge.parent else "nobody"
                    parent += " (it dials)" if edge.dialer is fx.Dialer.PARENT else ""
                    text += f" from {parent} e{edge.epoch}"
                    back = " ".join(f"{f.parent.name}/{f.slot} e{f.epoch}" for f in edge.fallbacks)
                    text += f" or {back}" if back else ""
                to = " ".join(
                    f"{c.child.name}/{c.slot}"
                    + (f" g{c.generation}" if c.generation > 1 else "")
                    + f" e{c.epoch}"
                    + (" (dial it)" if c.dialer is fx.Dialer.PARENT else "")
                    for c in edge.children
                )
                text += f" to {to}" if to else ""
                parent_id = edge.parent.worker_id if edge.parent else ""
                party.edges[object_id] = ev.HeldEdge(object_id, edge.stripe, parent_id, edge.epoch)
            self.lines.append(text)

    def name(self, worker_id: str) -> str:
        return worker_id.removeprefix("id-")

    def party(self, name: str) -> Party:
        return self.parties[name]

    def request(self, label: str) -> int:
        number = len(self.requests) + 1
        self.requests[number] = label
        return number

    # ---- verbs: joining ----

    def do_relay(self, *names: str, **options: str) -> None:
        for name in names:
            self.hello(name, ev.Role.RELAY, **options)

    def do_origin(self, name: str, **options: str) -> None:
        self.hello(name, ev.Role.ORIGIN, **{"up": "300mbit", **options})

    def hello(self, node: str, role: ev.Role, **options: str) -> None:
        party = self.parties.setdefault(node, Party(node, role))
        known = party.session != 0
        party.generation = int(options.get("gen", party.generation))
        for key in ("up", "down"):  # `-`: undeclared
            if key in options:
                setattr(party, key, None if options[key] == "-" else parse_rate(options[key]))
        party.silent = False
        self.sessions += 1
        edges = tuple(party.edges.values()) if "edges" in options else ()
        if "via" in options:  # it has healed by a fallback meanwhile: via=parent:epoch
            parent, epoch = options["via"].split(":")
            edges = tuple(ev.HeldEdge(e.object_id, e.stripe, f"id-{parent}", int(epoch)) for e in edges)
        event = ev.Hello(
            options.get("id", party.worker_id),
            self.sessions,
            role,
            options.get("name", node),
            party.generation,
            options.get("at", f"{node}:1"),
            party.up,
            party.down,
            holdings=tuple(party.holdings.values()) if known else (),
            edges=edges,
            assignment_epoch=party.told,
            no_dial_in="nat" in options,
        )
        if "id" not in options and "stale" not in options:
            party.session = self.sessions
        self.tell(event)

    def do_lost(self, *names: str) -> None:
        for name in names:
            self.tell(ev.SessionLost(self.party(name).worker_id, self.party(name).session))

    def do_stale_lost(self, name: str, session: str) -> None:
        self.tell(ev.SessionLost(self.party(name).worker_id, int(session)))

    def do_silent(self, *names: str) -> None:
        for name in names:
            self.party(name).silent = True

    def do_forget_holdings(self, *names: str) -> None:
        for name in names:
            self.party(name).holdings.clear()

    # ---- verbs: measuring ----

    def do_probing(self) -> None:
        """From here on, hosts without history are probed."""
        self.config = replace(self.config, probes=True)
        self.fleet = Fleet(self.config)
        self.history = History()

    def do_hop(self, parent: str, child: str, **options: str) -> None:
        """Time passes; every 2 s the receiver reports `got`, the sender `sent` (by default the same); each says nothing
        where its figure is `-`. The child's holdings grow by `chunks` a report. The sender has `streams` at once, the
        receiver `shared`."""
        for _ in range(int(options.get("times", 1))):
            self.do_wait("2")
            sent = options.get("sent", options["got"])
            if sent != "-":
                self.links(parent, (child, True, sent), options)
            if options["got"] != "-":
                self.links(child, (parent, False, options["got"]), options)

    def links(self, node: str, hop: tuple[str, bool, str], options: dict[str, str]) -> None:
        peer, sending, rate = hop
        busy = float(options.get("busy", 2.0))
        streams = int(options.get("streams" if sending else "shared", 1))
        party = self.party(node)
        sample = ev.LinkSample(f"id-{peer}", sending, parse_rate(rate), busy, streams)
        session = int(options.get("session", party.session))
        self.tell(ev.LinksMeasured(party.worker_id, session, (sample,)))

    def do_sends(self, node: str, **rates: str) -> None:
        """One report of a sender about all its concurrent hops."""
        party = self.party(node)
        samples = [ev.LinkSample(f"id-{peer}", True, parse_rate(rate), 2.0, len(rates)) for peer, rate in rates.items()]
        self.tell(ev.LinksMeasured(party.worker_id, party.session, tuple(samples)))

    def do_probed(self, order: str, **options: str) -> None:
        known = list(self.orders)
        order = {"last": known[-1:], "last-but-one": known[-2:]}.get(order, [order])[0]
        party = self.party(options.get("by", self.orders.get(order, "")))
        up, down = (parse_rate(options[key]) if key in options else None for key in ("up", "down"))
        error = options.get("error", "").replace("_", " ")
        session = int(options.get("session", party.session))
        self.tell(ev.ProbeEnded(party.worker_id, session, order, up, down, 2.0, error))

    def do_dialled(self, name: str, answer: str) -> None:
        self.tell(ev.DialedBack(self.party(name).worker_id, self.party(name).session, answer == "yes"))

    def do_links(self) -> None:
        """What is believed of every link."""
        view = status_view(self.fleet.state, self.config, self.now)
        for r in view.relays:
            notes = (", demoted" if r.demoted else "") + (", cannot be dialled" if r.dialable == "no" else "")
            self.lines.append(
                f"{r.name} up {format_rate(r.uplink_bytes_per_s)} {r.uplink_source}"
                f" down {format_rate(r.downlink_bytes_per_s)} {r.downlink_source} rank {r.rank}{notes}"
            )
        for o in view.origins:
            self.lines.append(f"{o.name} up {format_rate(o.uplink_bytes_per_s)} {o.source}")

    # ---- verbs: time ----

    def do_wait(self, seconds: str) -> None:
        """Let time pass: heartbeats of who is not silent, ticks when they are due."""
        end = self.now + float(seconds)
        while self.now < end - 1e-9:
            beat = min(end, self.now + 0.5)
            self.now = beat if self.wake is None else min(beat, max(self.wake, self.now))
            for party in self.parties.values():
                if not party.silent and self.now >= beat:
                    self.tell(ev.Heard(party.worker_id, party.session))
            if self.wake is not None and self.now >= self.wake - 1e-9:
                self.wake = None
                self.tell(ev.Tick())

    def do_stall(self, seconds: str) -> None:
        """The coordinator itself stands still."""
        self.now += float(seconds)
        self.tell(ev.Tick())

    def do_restart_coordinator(self, reserved_only: str = "") -> None:
        stored = json.loads(json.dumps(self.fleet.state.to_json()))
        self.fleet = Fleet(self.config, FleetState.from_json(stored))
        self.wake = None
        self.tell(ev.Tick())

    def do_reboot_coordinator(self) -> None:
        """The host, too: its clock starts anew."""
        self.now = 3.0
        self.do_restart_coordinator()

    def do_lose_state(self) -> None:
        """The coordinator comes back without its database."""
        self.fleet = Fleet(self.config)
        self.history = History()
        self.wake = None

    # ---- verbs: publishing ----

    def do_publish(self, origin: str, **options: str) -> None:
        version = int(options.get("v", 0))
        self.tell(
            ev.PublishRequested(
                self.request(options.get("as", f"publish{version}")),
                self.party(origin).worker_id if origin in self.parties else f"id-{origin}",
                options.get("object", f"o{version}"),
                version,
                float(options.get("until", 1.0)),
                ev.Topology(options.get("topology", "chains")),
                int(options.get("chains", 0)),
                PAYLOAD_BYTES,
                float(options.get("elapsed", 1.0)),
            )
        )

    def do_offer(self, origin: str, version: str, **options: str) -> None:
        party = self.party(origin)
        size = int(options.get("bytes", PAYLOAD_BYTES))
        object_id = options.get("object", f"o{version}")
        offer = ev.Offered(
            party.worker_id, party.session, object_id, int(version), "full", size, size, CHUNKS, options.get("root", "")
        )
        self.tell(offer)

    def do_root(self, origin: str, version: str, **options: str) -> None:
        party = self.party(origin)
        object_id = options.get("object", f"o{version}")
        self.tell(ev.RootAnnounced(party.worker_id, party.session, object_id, options.get("root", f"x:{version}")))

    def do_source_failed(self, origin: str, version: str) -> None:
        party = self.party(origin)
        event = ev.SourceFailed(party.worker_id, party.session, f"o{version}", "model.safetensors changed")
        self.tell(event)

    def do_caller_left(self, request: str) -> None:
        self.tell(ev.PublishWatcherLeft(next(n for n, label in self.requests.items() if label == request)))

    def do_cancel(self, version: str) -> None:
        self.tell(ev.CancelRequested(self.request(f"cancel{version}"), int(version)))

    # ---- verbs: what relays report ----

    def report(self, name: str, holding: ev.Holding) -> None:
        party = self.party(name)
        party.holdings[holding.object_id] = holding
        self.tell(ev.HoldingChanged(party.worker_id, party.session, holding))

    def do_receiving(self, version: str, *names: str, **options: str) -> None:
        held = int(options.get("chunks", 50))
        chunks = ((0, held),) if held else ()
        for name in names:
            self.report(name, ev.Holding(f"o{version}", ev.ObjectState.RECEIVING, 0, "", chunks, CHUNKS))

    def do_received(self, version: str, *names: str) -> None:
        for name in names:
            self.report(name, ev.Holding(f"o{version}", ev.ObjectState.RECEIVED, 0, "", ((0, CHUNKS),), CHUNKS))

    def landed(self, state: ev.ObjectState, version: str, names: tuple[str, ...], options: dict[str, str]) -> None:
        root, reason = options.get("root", f"x:{version}"), options.get("reason", "").replace("_", " ")
        for name in names:
            holding = ev.Holding(f"o{version}", state, int(version), root, ((0, CHUNKS),), CHUNKS, reason)
            self.report(name, holding)

    def do_verified(self, version: str, *names: str, **options: str) -> None:
        self.landed(ev.ObjectState.VERIFIED, version, names, options)

    def do_installed(self, version: str, *names: str, **options: str) -> None:
        self.landed(ev.ObjectState.INSTALLED, version, names, options)

    def do_install_failed(self, version: str, *names: str, **options: str) -> None:
        self.landed(ev.ObjectState.FAILED, version, names, options)

    def do_disk_full(self, version: str, *names: str, **options: str) -> None:
        held = int(options.get("chunks", 50))
        for name in names:
            chunks = ((0, held),)
            state = ev.ObjectState.DISK_FULL
            self.report(name, ev.Holding(f"o{version}", state, 0, "", chunks, CHUNKS, "no room: 12 MB missing"))

    def do_parent_lost(self, name: str, version: str, reason: str, **options: str) -> None:
        """By default of the edge that was assigned last; `parent=` and `epoch=` name another."""
        party = self.party(name)
        edge = self.edge(party, version, options)
        self.tell(ev.ParentLost(party.worker_id, party.session, edge, ParentLossReason(reason)))

    def do_parent_connected(self, name: str, version: str, **options: str) -> None:
        party = self.party(name)
        self.tell(ev.ParentConnected(party.worker_id, party.session, self.edge(party, version, options)))

    def edge(self, party: Party, version: str, options: dict[str, str]) -> ev.HeldEdge:
        assigned = party.edges.get(f"o{version}", ev.HeldEdge(f"o{version}", 0, "", 0))
        parent = f"id-{options['parent']}" if "parent" in options else assigned.parent
        return ev.HeldEdge(f"o{version}", 0, parent, int(options.get("epoch", assigned.epoch)))

    def do_ack(self, *names: str) -> None:
        for name in names:
            party = self.party(name)
            self.tell(ev.Acknowledged(party.worker_id, party.session, party.told))

    # ---- verbs: going ----

    def do_leave(self, name: str) -> None:
        self.tell(ev.LeaveRequested(self.party(name).worker_id, self.party(name).session))

    def do_drain(self, name: str) -> None:
        self.tell(ev.DrainRequested(self.request(f"drain-{name}"), name))

    def do_forget(self, name: str) -> None:
        self.tell(ev.ForgetRequested(self.request(f"forget-{name}"), name))

    # ---- verbs: looking ----

    def do_status(self) -> None:
        view = status_view(self.fleet.state, self.config, self.now)
        for p in view.publications:
            chains = " | ".join(" ".join(chain.names) for chain in p.chains)
            times = " ".join(f"t{k}={v:.1f}" for k, v in p.t_bcast.items())
            lost = f" lost={','.join(p.lost)}" if p.lost else ""
            reason = f" ({p.reason})" if p.reason else ""
            self.lines.append(
                f"v{p.version} {p.state}{reason}: installed {p.installed}/{p.targeted}{lost} {times}".rstrip()
                + f" chains {chains}"
            )
        for r in view.relays:
            place = f"{r.chain}.{r.position} behind {r.parent or 'nobody'}" if r.chain >= 0 else "no place"
            versions = f"{r.received}/{r.verified}/{r.installed}"
            self.lines.append(f"{r.name} {r.state} {place} {versions} {r.progress:.0%} {r.reason}".rstrip())
