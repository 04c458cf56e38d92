"""Which version may be published: the rules, without their consequences.

Versions only grow within a run. A version is burned when its root is announced; one that came to nothing before may be
asked for again. The same version with the same root is the same version: the publisher is told the root and compares;
when the version waits for a publisher, it builds the object anew and hosts go on where they were.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from chappe.core.bases import refusal
from chappe.core.effects import PublishErrorKind
from chappe.core.events import PublishRequested, Role
from chappe.core.feeding import WAITS
from chappe.core.publication import ENDED, LIVE, Publication
from chappe.core.state import FleetState

VERSION_MAX = 1 << 62


@dataclass(frozen=True, slots=True)
class Verdict:
    """One of: refused, announced already, to be resumed, or accepted (`abandoned` ends first)."""

    refusal: tuple[PublishErrorKind, str] | None = None
    already: Publication | None = None
    resume: Publication | None = None
    abandoned: tuple[Publication, ...] = ()


def next_version(state: FleetState) -> int:
    running = (p.version for p in state.publications.values() if p.phase in LIVE)
    return 1 + max(state.newest_version, max(running, default=0))


def judge(state: FleetState, event: PublishRequested, lanes_max: int, now: float) -> Verdict:
    invalid = _invalid(state, event)
    if invalid:
        return Verdict(refusal=(PublishErrorKind.INVALID, invalid))
    verdict = _judge_version(state, event) if event.version else _with_workers(state, ())
    lacking = (
        refusal(state, event, lanes_max, now)
        if verdict.refusal is None and not (verdict.already or verdict.resume)
        else ""
    )
    return Verdict(refusal=(PublishErrorKind.INVALID, lacking)) if lacking else verdict


def _invalid(state: FleetState, event: PublishRequested) -> str:
    if not (math.isfinite(event.until) and 0 < event.until <= 1):
        return f"until {event.until:g} is not a fraction in (0, 1]"
    if event.chains < 0:
        return f"chains {event.chains} is negative (0 means as planned)"
    if not 0 <= event.version < VERSION_MAX:
        return f"version {event.version} is out of range"
    if not (math.isfinite(event.elapsed_s) and event.elapsed_s >= 0):
        return f"elapsed_s {event.elapsed_s} is not a duration"
    origin = state.workers.get(event.origin_id)
    if origin is None or origin.role is not Role.ORIGIN or not origin.present:
        return f"origin {event.origin_id} has not joined: join first, then publish"
    known = state.publications.get(event.object_id)
    if known is not None and not (known.burned and known.version == event.version):
        return f"object {event.object_id} belongs to another publisher"
    further = [delta.object_id for delta in event.deltas]
    further += [event.compressed.object_id] if event.compressed is not None else []
    taken = [object_id for object_id in further if object_id in state.publications or object_id == event.object_id]
    if taken or len(set(further)) < len(further):
        return f"object {(taken or further)[0]}, beside the full one, is known already"
    return ""


def _judge_version(state: FleetState, event: PublishRequested) -> Verdict:
    version = event.version
    same = [p for p in state.mains if p.version == version]
    burned = next((p for p in same if p.burned), None)
    if burned is not None:
        return _burned(state, burned, event)
    newest = state.newest_version
    if version <= newest:
        return _conflict(f"version {version} is not newer than {newest}: versions only grow, publish {newest + 1}")
    running = [p for p in state.mains if p.phase in LIVE and p.version >= version]
    present = [p for p in running if p.origin_id in state.workers and state.workers[p.origin_id].present]
    if present:
        other = max(present, key=lambda p: p.version)
        what = "is being published" if other.version == version else f"is older than {other.version}, being published"
        return _conflict(f"version {version} {what}: wait for it, cancel it, or take a newer version")
    return _with_workers(state, tuple(running))


def _burned(state: FleetState, burned: Publication, event: PublishRequested) -> Verdict:
    if burned.phase in ENDED:
        return _conflict(
            f"version {burned.version} was {burned.phase.value} after its root was announced: publish a newer version"
        )
    if burned.reason == WAITS:
        origin = state.workers.get(burned.origin_id)
        if origin is not None and origin.present and origin.worker_id != event.origin_id:
            return _conflict(f"version {burned.version} is being resumed by {origin.name}: wait for it")
        if event.snapshot_bytes != burned.snapshot_bytes:
            return _conflict(
                f"version {burned.version} has {burned.snapshot_bytes} bytes, this snapshot {event.snapshot_bytes}: "
                "publish the same snapshot to resume it, or a newer version"
            )
        return Verdict(resume=burned)
    return Verdict(already=burned)


def _conflict(message: str) -> Verdict:
    return Verdict(refusal=(PublishErrorKind.CONFLICT, message))


def _with_workers(state: FleetState, abandoned: tuple[Publication, ...]) -> Verdict:
    if not any(worker.placeable for worker in state.relays):
        message = (
            "no relay is in the fleet: start relayd on the rollout hosts (see `chappe status`; of those that run, "
            "their log and the coordinator's say why they are not taken), then publish again"
        )
        return Verdict(refusal=(PublishErrorKind.NO_WORKERS, message))
    return Verdict(abandoned=abandoned)
