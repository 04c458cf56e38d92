"""`chappe explain NAME`: why a worker stands where it does, who feeds it, whom it feeds, what is known of its links.

All of it is in the coordinator's status: a version's chains come stripe by stripe, and a worker is once in each stripe.
"""

from __future__ import annotations

import asyncio
import json as jsonlib
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from cyclopts import Parameter

from chappe.cli.client import DEFAULT_COORDINATOR, CoordinatorAddress, get_status
from chappe.cli.settings import NO_TLS, Flat, TlsSettings
from chappe.coordinator.status import layout_json, relay_json
from chappe.core.rates import Source
from chappe.errors import UsageError
from chappe.units import format_duration, format_rate
from chappe.v1 import coordinator_pb2 as pb

PUBLISHER = "the publisher"
TAIL = "nobody"
STAR = "star"


@dataclass(frozen=True, slots=True)
class PlaceView:
    """In one stripe; a plain chain is stripe 0. `share` is the stripe's part of the chunks. `position` 0 is the head.
    `parent` None: the publisher, or, for a head that has everything, nobody."""

    stripe: int
    share: float
    position: int
    parent: str | None
    child: str | None


def explain(
    name: Annotated[str, Parameter(show_env_var=False)],
    /,
    *,
    json: Annotated[bool, Parameter(negative="")] = False,
    where: Annotated[CoordinatorAddress, Flat] = DEFAULT_COORDINATOR,
    tls: Annotated[TlsSettings, Flat] = NO_TLS,
) -> int:
    """Why a worker is where it is: its places with who feeds it and whom it feeds, in words why, and its links.

    Parameters
    ----------
    name
        The worker's name, as `chappe status` shows it.
    json
        Print one JSON object instead of lines.
    """
    found = explained(asyncio.run(get_status(where, tls)), name)
    print(jsonlib.dumps(found, indent=2) if json else "\n".join(lines(found)))
    return 0


def places(publication: pb.PublicationStatus, name: str) -> list[PlaceView]:
    found: list[PlaceView] = []
    weights = list(publication.stripe_weights) or [1]
    for chain in publication.chains:
        names = list(chain.names)
        if name in names:
            at = names.index(name)
            child = names[at + 1] if at + 1 < len(names) else None
            share = weights[chain.stripe] / sum(weights) if chain.stripe < len(weights) else 0.0
            found.append(PlaceView(chain.stripe, share, at, names[at - 1] if at else None, child))
    return found


def explained(status: pb.Status, name: str) -> dict[str, Any]:
    """What `--json` prints. Raises UsageError for a worker that the fleet does not have."""
    relay = next((r for r in status.relays if r.name == name), None)
    if relay is None:
        known = ", ".join(sorted(r.name for r in status.relays)) or "none"
        raise UsageError(f"NAME {name}: no such worker in this fleet; it has: {known}")
    here = next((p for p in status.publications if places(p, name)), None)
    publication = None
    if here is not None:
        mine = places(here, name)
        publication = {
            "version": here.version,
            "topology": here.topology,
            "stripes": max(1, len(here.stripe_weights)),
            "chains": len(here.chains),
            "floor_s": here.floor_s if here.HasField("floor_s") else None,
            "floor_source": here.floor_source or None,
            "bound_bytes_per_s": here.payload_bytes / here.floor_s if here.floor_s else None,
            "layout": layout_json(here),
            "inner": sum(place.child is not None for place in mine),
            "sends_share": sum(place.share for place in mine if place.child is not None),
            "places": [asdict(place) for place in mine],
        }
    return {"relay": relay_json(relay), "publication": publication}


def lines(found: dict[str, Any]) -> list[str]:
    relay, publication = found["relay"], found["publication"]
    shown = [f"{relay['name']}: {relay['state']}, {relay['reason'] or 'nothing more is known'}"]
    for what in ("uplink", "downlink"):
        age_s = relay[f"{what}_age_s"]
        since = "" if age_s is None else f" {format_duration(age_s)} ago"
        shown.append(f"{what} {format_rate(relay[f'{what}_bytes_per_s'])}, {relay[f'{what}_source']}{since}")
    if relay["demoted"]:
        shown.append("demoted: it sent slower than its link was known for, and stands last until it has shown better")
    if relay["dialable"] == "no":
        shown.append("cannot be dialled: only those who can stand next to it")
    if relay["duty"]:
        shown.append(f"{relay['duty']}: {relay['duty_reason'] or ''}".rstrip(": "))
    if publication is None:
        return [*shown, "no place in any version's chains now"]
    floor = "" if publication["floor_s"] is None else f", floor {format_duration(publication['floor_s'])}"
    floor += " (assumed rates)" if publication["floor_source"] == Source.ASSUMED else ""
    count, layout = publication["stripes"], publication["layout"]
    how = f"{count} stripes, sends in {publication['inner']} of them" if count > 1 else "a plain chain"
    if publication["topology"] == STAR:
        how = "a star: a stream of its own from the publisher"
    shown.append(f"version {publication['version']} ({publication['topology']}): {how}{floor}")
    if layout["reason"]:
        shown.append(f"  {layout['reason']}")
    shown += _figures(publication, layout)
    for place in publication["places"]:
        where = f"  stripe {place['stripe']} ({place['share']:.0%}): " if count > 1 else "  "
        fed = place["parent"] or PUBLISHER
        shown.append(f"{where}fed by {fed}, feeds {place['child'] or TAIL} (position {place['position']})")
    return shown


def _figures(publication: dict[str, Any], layout: dict[str, Any]) -> list[str]:
    """What the decision stands on: R and the bound, what this worker passes on of R, both promises."""
    shown = []
    rate, bound = layout["rate_bytes_per_s"], publication["bound_bytes_per_s"]
    if rate is not None:
        most = "" if bound is None else f" of {format_rate(bound)} that no topology beats"
        shown.append(f"  R, into every worker: {format_rate(rate)}{most}")
        share = publication["sends_share"]
        shown.append(f"  it passes on {share:.0%} of R, {format_rate(share * rate)}, and nothing of what it is tail of")
    promised = [f"{what} {format_duration(s)}" for what in ("striped", "plain") if (s := layout[f"{what}_s"])]
    return [*shown, f"  expected: {', '.join(promised)}"] if promised else shown
