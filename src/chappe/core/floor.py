"""The floor of a broadcast, what it stands on, and what becomes of it once a broadcast has shown what is possible.

    chains are laid ──▶ floor from the rates that are believed then ──everybody has it──▶ measured rates in place of
                                                                      assumed ones, and no more than it took

An assumption is no bound: over links faster than was assumed a broadcast takes less than such a floor.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from chappe.core.lanes import of_version
from chappe.core.publication import Publication
from chappe.core.rates import Figure, Source, downlink, uplink
from chappe.core.state import FleetConfig, FleetState
from chappe.planning.topology import broadcast_floor

_WEAKEST_FIRST = (Source.ASSUMED, Source.DECLARED, Source.MEASURED)
_SAME = 1 - 1e-9


@dataclass(frozen=True, slots=True)
class Floor:
    seconds: float
    source: Source
    """The weakest figure of the bound that decides."""


def floor_of(payload_bytes: int, origin: Figure, uplinks: list[Figure], downlinks: list[Figure]) -> Floor:
    """See `broadcast_floor`. Where two bounds are the same, the better known one is enough."""
    seconds = broadcast_floor(
        payload_bytes,
        origin.bytes_per_s,
        [figure.bytes_per_s for figure in uplinks],
        [figure.bytes_per_s for figure in downlinks],
    )
    slowest = min(downlinks, key=lambda figure: figure.bytes_per_s)
    alone = [one.source for one in (origin, slowest) if payload_bytes / one.bytes_per_s >= seconds * _SAME]
    together = min((one.source for one in (origin, *uplinks)), key=_WEAKEST_FIRST.index)
    return Floor(seconds, max(alone or [together], key=_WEAKEST_FIRST.index))


def set_floor(
    state: FleetState, config: FleetConfig, publication: Publication, worker_ids: Iterable[str], now: float
) -> None:
    """From the rates of now, for these workers; without any it stays as it is."""
    assumed = config.assumed_bytes_per_s
    workers = [state.workers[w] for w in worker_ids if w in state.workers]
    if not workers:
        return
    origin = state.workers.get(publication.origin_id)
    found = floor_of(
        publication.payload_bytes,
        Figure(assumed, Source.ASSUMED) if origin is None else uplink(origin, assumed, now),
        [uplink(worker, assumed, now) for worker in workers],
        [downlink(worker, assumed, now) for worker in workers],
    )
    publication.floor_s, publication.floor_source = found.seconds, found.source.value


def note_shown(state: FleetState, config: FleetConfig, main: Publication, now: float) -> list[Publication]:
    """Everybody has the version. Returns what has changed."""
    changed = []
    for one in of_version(state, main):
        before = one.floor_s
        if one.floor_s is None:
            continue
        if one.floor_source == Source.ASSUMED:
            set_floor(state, config, one, [w for w, m in one.members.items() if m.counted and not m.via], now)
        one.floor_s = min(one.floor_s, main.t_bcast["1.0"])
        if one.floor_s != before:
            changed.append(one)
    return changed
