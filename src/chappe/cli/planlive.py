"""What `chappe plan` takes from a living fleet: its links, and the broadcasts that its coordinator has measured."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from chappe.cli.client import CoordinatorAddress, get_status
from chappe.cli.planbroadcast import Broadcast, Payload, forecast, reached, sent
from chappe.cli.planfleet import living_fleet
from chappe.cli.plankeys import LinkKeys, PayloadKeys, Scenario
from chappe.cli.settings import TlsSettings
from chappe.errors import UsageError
from chappe.planning.forecast import physical_bound_s
from chappe.planning.measured import Measured, expected_t_bcast_s, usual_overhead
from chappe.units import format_size
from chappe.v1 import coordinator_pb2 as pb

FRACTIONS = {0.5: "0.5", 0.9: "0.9", 1.0: "1.0"}
"""The fractions that a coordinator measures."""
_ABANDONED = ("cancelled", "failed")


def status_of(coordinator: str, tls: TlsSettings) -> pb.Status:
    """Raises CoordinatorUnavailableError, and UsageError for an address that is none."""
    return asyncio.run(get_status(CoordinatorAddress(coordinator=coordinator), tls))


def living_broadcast(status: pb.Status, payload: PayloadKeys, links: LinkKeys, scenario: Scenario) -> Broadcast:
    """T_bcast of the newest version as it was measured; for another payload (by flag) what is to be expected of it.

    `payload` and `links` are the flags as they came. Raises UsageError for a fraction that is not measured, and for a
    fleet that has published nothing yet.
    """
    keys = scenario.merge(links)
    if keys.fraction not in FRACTIONS:
        raise UsageError(f"--fraction {keys.fraction:g}: a coordinator measures {', '.join(FRACTIONS.values())}")
    measured = measurements(status.publications, FRACTIONS[keys.fraction])
    if payload.model_fields_set:
        return _expected(status, sent(scenario.merge(payload)), keys, links.uplink, measured)
    if not measured:
        raise UsageError(
            f"--coordinator: no version has reached {keys.fraction:.0%} of its workers yet; give the payload "
            "(--payload, --delta) for a forecast over its links"
        )
    newest = max(measured, key=lambda m: m.version)
    of = next(p for p in status.publications if p.version == newest.version and p.state not in _ABANDONED)
    source = f"T({keys.fraction:g}) of version {of.version} as measured, {format_size(of.payload_bytes)} ({of.kind})"
    return Broadcast(newest.t_bcast_s, source, Payload(of.kind, of.payload_bytes))


def measurements(publications: Sequence[pb.PublicationStatus], fraction: str) -> list[Measured]:
    """Of the publications that went through and have both figures; a broadcast to nobody has none."""
    return [
        Measured(p.version, p.t_bcast[fraction], p.floor_s)
        for p in publications
        if p.state not in _ABANDONED and p.t_bcast.get(fraction, 0.0) > 0 and p.HasField("floor_s") and p.floor_s > 0
    ]


def _expected(
    status: pb.Status, payload: Payload, keys: LinkKeys, uplink: float | None, measured: Sequence[Measured]
) -> Broadcast:
    fleet = living_fleet(status, uplink)
    what = f"{format_size(payload.size_bytes)} ({payload.kind}) to {fleet.workers} living workers"
    floor_s = physical_bound_s(payload.size_bytes, fleet.b0_bytes_per_s, fleet.links)
    expected = expected_t_bcast_s(floor_s, measured)
    if expected is None:
        found = reached(forecast(payload, fleet, keys).at(keys.fraction), keys.fraction, fleet)
        return Broadcast(found, f"T({keys.fraction:g}) of {what}, forecast: nothing is measured yet", payload, fleet)
    overhead = usual_overhead(measured)
    return Broadcast(
        expected, f"T({keys.fraction:g}) expected of {what}: the floor times {overhead:.3f} as measured", payload, fleet
    )
