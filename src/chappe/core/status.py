"""The fleet as people see it: fills the views of `chappe.core.views`. Reads the state, changes nothing."""

from __future__ import annotations

from chappe.core.chain import SOURCE
from chappe.core.events import ObjectState, Role
from chappe.core.lanes import of_version
from chappe.core.overlap import rollouts_of
from chappe.core.publication import ENDED, INSTALLED, LIVE, RECEIVED, VERIFIED, Phase, Publication
from chappe.core.rates import downlink, link_of, uplink
from chappe.core.state import FleetConfig, FleetState
from chappe.core.training_view import training_view
from chappe.core.views import (
    ChainView,
    FractionsView,
    OriginView,
    PayloadView,
    PublicationView,
    RelayState,
    RelayView,
    StatusView,
)
from chappe.core.workers import Worker, chunks_held
from chappe.planning.topology import rank, why_placed

MIXED = "mixed"
"""The kind of a publication of which some workers get a delta and others the full snapshot."""


def publication_view(state: FleetState, publication: Publication, run: str, now: float) -> PublicationView:
    p = publication
    payloads = payload_views(state, p)
    most = max(payloads, key=lambda view: view.payload_bytes) if payloads else None
    floors = [(one.floor_s, one.floor_source) for one in of_version(state, p) if one.floor_s is not None]
    floor_s, floor_source = max(floors, default=(None, ""))
    names = {worker_id: member.name for worker_id, member in p.members.items()}
    ended = p.t_bcast.get("1.0") if p.phase is Phase.CLOSED else None
    until = p.ended_s if p.ended_s is not None else now
    return PublicationView(
        run=run,
        object_id=p.object_id,
        version=p.version,
        root=p.root,
        kind=p.kind if most is None else MIXED if len({view.kind for view in payloads}) > 1 else most.kind,
        payload_bytes=p.payload_bytes if most is None else most.payload_bytes,
        snapshot_bytes=p.snapshot_bytes,
        targeted=p.targeted,
        installed=p.installed,
        lost=tuple(p.lost),
        installed_fraction=p.fraction(INSTALLED),
        t_bcast=dict(p.t_bcast),
        floor_s=floor_s,
        floor_source=floor_source,
        chains=tuple(
            ChainView(tuple(names.get(m) or _name(state, m) for m in chain.members), chain.stripe)
            for one in of_version(state, p)
            for chain in sorted(one.layout.chains, key=lambda c: c.stripe)  # each worker is once in every stripe
            if chain.members
        ),
        fractions=FractionsView(p.fraction(RECEIVED), p.fraction(VERIFIED), p.fraction(INSTALLED)),
        state=p.phase.value,
        reason=p.reason,
        objects=tuple(view.object_id for view in payloads) or (p.object_id,),
        elapsed_s=max(0.0, until - p.started_s) if ended is None else ended,
        topology=p.topology.value,
        payloads=payloads,
        payload_reason=p.payload_reason,
        layout_reason=p.grounds.why,
        stripe_weights=() if p.stripes.plain else p.stripes.weights,
        rate_bytes_per_s=p.grounds.rate_bytes_per_s,
        striped_s=p.grounds.striped_s,
        plain_s=p.grounds.plain_s,
    )


def payload_views(state: FleetState, main: Publication) -> tuple[PayloadView, ...]:
    """The objects that travel to somebody, the full one first."""
    shown = []
    for one in of_version(state, main):
        mine = [m for m in one.members.values() if m.counted and not m.via]
        if not mine:
            continue
        shown.append(
            PayloadView(
                one.object_id,
                one.kind,
                one.payload_bytes,
                len(mine),
                sum(m.level >= INSTALLED for m in mine),
                one.base_root if one.main else "",
                one.changed_elements,
                one.compared_elements,
                one.alarm,
            )
        )
    return tuple(shown)


def _name(state: FleetState, worker_id: str) -> str:
    worker = state.workers.get(worker_id)
    return worker_id if worker is None else worker.name


def _target(state: FleetState, worker: Worker) -> Publication | None:
    """What a relay's line is about: the newest live publication that has it, else the current one."""
    mine = [p for p in state.mains if worker.worker_id in p.members and p.phase not in ENDED]
    live = [p for p in mine if p.phase in LIVE]
    target = max(live or mine, key=lambda p: p.version, default=None)
    via = target.members[worker.worker_id].via if target is not None else ""
    lane = state.publications.get(via)
    return target if lane is None or worker.worker_id not in lane.members else lane


def relay_state(worker: Worker, target: Publication | None) -> RelayState:
    if worker.lapsed:
        return RelayState.DRAINED if worker.drained else RelayState.LOST
    if not worker.connected:
        return RelayState.ABSENT
    if worker.drained:
        return RelayState.DRAINED
    if worker.leaving:
        return RelayState.LEAVING
    if target is None:
        return RelayState.INSTALLED if worker.installed else RelayState.IDLE
    member = target.members[worker.worker_id]
    if member.level == INSTALLED:
        return RelayState.INSTALLED
    holding = worker.holdings.get(target.object_id)
    if holding is not None and holding.state is ObjectState.DISK_FULL:
        return RelayState.DISK_FULL
    if member.failed:
        return RelayState.FAILED
    return {VERIFIED: RelayState.VERIFIED, RECEIVED: RelayState.RECEIVED}.get(member.level, RelayState.RECEIVING)


def relay_view(
    state: FleetState, worker: Worker, config: FleetConfig, now: float, rank_of: int = 0, of: int = 0
) -> RelayView:
    link = link_of(worker, config.assumed_bytes_per_s, now)
    up, down = (figure(worker, config.assumed_bytes_per_s, now) for figure in (uplink, downlink))
    target = _target(state, worker)
    shown = relay_state(worker, target)
    parent, chain, position, reason, progress, transport = "", -1, -1, "", 0.0, ""
    if target is not None:
        member = target.members[worker.worker_id]
        holding = worker.holdings.get(target.object_id)
        no_room = holding.reason if holding is not None and shown is RelayState.DISK_FULL else ""
        reason = no_room or member.failed or member.why
        held = chunks_held(holding, target.chunks_total)
        progress = 1.0 if member.level or not target.chunks_total else held / target.chunks_total
        for place in target.layout.places(worker.worker_id)[:1]:
            chain, position = place.chain.slot, place.position
            above = target.layout.ancestors(place, 1)
            if above:
                parent_id = target.origin_id if above[0] == SOURCE else above[0]
                parent = _name(state, parent_id) if parent_id in state.workers else ""  # a publisher that is forgotten
                transport = {True: "tcp", False: "grpc", None: ""}[worker.over_tcp.get(parent_id)]
    if not reason and rank_of:
        reason = why_placed(link, rank_of, of)
    return RelayView(
        name=worker.name,
        state=shown.value,
        parent=parent,
        chain=chain,
        position=position,
        received=worker.received,
        verified=worker.verified,
        installed=worker.installed,
        rank=rank_of,
        downlink_bytes_per_s=link.downlink_bytes_per_s,
        uplink_bytes_per_s=link.uplink_bytes_per_s,
        source=link.source,
        reason=reason,
        worker_id=worker.worker_id,
        address=worker.address,
        progress=progress,
        uplink_source=up.source.value,
        downlink_source=down.source.value,
        uplink_age_s=up.age_s,
        downlink_age_s=down.age_s,
        demoted=worker.demoted,
        dialable={True: "yes", False: "no", None: "unknown"}[worker.dialable],
        duty="" if config.training is None or not worker.duty_reason else "standby" if worker.standby else "active",
        duty_reason=worker.duty_reason if config.training is not None else "",
        price_per_hour=worker.price_per_hour,
        rollouts_per_s=rollouts_of(worker),
        transport=transport,
        rollouts_source="measured" if worker.reported_rollouts_per_s else "declared" if rollouts_of(worker) else "",
    )


def origin_views(state: FleetState, config: FleetConfig, now: float) -> tuple[OriginView, ...]:
    origins = sorted((w for w in state.workers.values() if w.role is Role.ORIGIN), key=lambda w: (w.name, w.worker_id))
    figures = [(w, uplink(w, config.assumed_bytes_per_s, now)) for w in origins]
    return tuple(
        OriginView(
            worker.name,
            worker.worker_id,
            worker.address,
            "here" if worker.connected else "lost" if worker.lapsed else "absent",
            up.bytes_per_s,
            up.source.value,
            up.age_s,
        )
        for worker, up in figures
    )


def ranks(state: FleetState, config: FleetConfig, now: float) -> dict[str, int]:
    """1 is the fastest of the relays that are here."""
    links = [link_of(worker, config.assumed_bytes_per_s, now) for worker in state.relays if worker.present]
    return {link.worker_id: i for i, link in enumerate(rank(links), start=1)}


def relay_views(state: FleetState, config: FleetConfig, now: float) -> tuple[RelayView, ...]:
    order = ranks(state, config, now)
    return tuple(
        relay_view(state, worker, config, now, order.get(worker.worker_id, 0), len(order))
        for worker in sorted(state.relays, key=lambda w: (w.name, w.worker_id))
    )


def status_view(state: FleetState, config: FleetConfig, now: float) -> StatusView:
    newest_first = sorted(state.mains, key=lambda p: (p.started_s, p.version), reverse=True)
    return StatusView(
        config.run,
        relay_views(state, config, now),
        tuple(publication_view(state, p, config.run, now) for p in newest_first),
        origin_views(state, config, now),
        training_view(state, config, now),
    )
