"""`chappe plan topology`: T(f) of chains, stars and the bound for a fleet, and who would stand where."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from chappe.cli.planbroadcast import Payload, figure_s, forecast, payloads_of
from chappe.cli.plancapacity import NO_LINKS, NO_PAYLOAD
from chappe.cli.planfleet import Fleet, fleet_of, living_fleet
from chappe.cli.plankeys import LinkKeys, PayloadKeys, Scenario
from chappe.cli.planlive import status_of
from chappe.cli.planshow import DEFAULT_OUTPUT, Answer, Output, answer, facts, grid, stack
from chappe.cli.settings import NO_TLS, Flat, TlsSettings
from chappe.planning.broadcast import (
    PUBLISHED_CHUNK_BYTES,
    EqualFleet,
    chain_pipelined_s,
    star_limited_s,
    star_unlimited_s,
)
from chappe.planning.forecast import ChainForecast, physical_bound_s, star_forecast
from chappe.units import format_rate, format_size

FRACTIONS = (0.5, 0.9, 1.0)
CHAINS_SHOWN_MAX = 64
LABELS = {
    "floor": "floor (no topology beats it)",
    "star_unlimited": "star, trainer's uplink unlimited",
    "star": "star",
    "chains_64mb": "chains, 64 MB chunks (as published)",
    "chains": "chains",
}


def topology(
    *,
    payload: Annotated[PayloadKeys, Flat] = NO_PAYLOAD,
    links: Annotated[LinkKeys, Flat] = NO_LINKS,
    coordinator: str | None = None,
    tls: Annotated[TlsSettings, Flat] = NO_TLS,
    output: Annotated[Output, Flat] = DEFAULT_OUTPUT,
) -> int:
    """Say how long a broadcast would take: chains as the coordinator would build them, a star, and the physical bound.

    Times are of the transfer: hashing, the final fsync and the install hook come on top.

    Parameters
    ----------
    coordinator
        HOST:PORT of a coordinator: plan for the links of its living fleet.
    """
    return answer(output, lambda scenario: _topology(payload, links, coordinator, tls, scenario))


def _topology(
    payload: PayloadKeys, links: LinkKeys, coordinator: str | None, tls: TlsSettings, scenario: Scenario
) -> Answer:
    payloads = payloads_of(scenario.merge(payload))
    keys = scenario.merge(links)
    if coordinator is None:
        fleet = fleet_of(links, scenario)
    else:
        fleet = living_fleet(status_of(coordinator, tls), links.uplink)
    fractions = tuple(sorted({*FRACTIONS, keys.fraction}))
    planned = {p.kind: forecast(p, fleet, keys) for p in payloads}
    times = {p.kind: t_bcast(p, fleet, planned[p.kind], fractions) for p in payloads}
    layout = planned[payloads[0].kind]
    found: dict[str, Any] = {
        "workers": fleet.workers,
        "uplink_bytes_per_s": fleet.b0_bytes_per_s,
        "links": fleet.source,
        "fraction": keys.fraction,
        "chains": [list(chain) for chain in layout.chains],
        "why": layout.plan.why,
        "chunk_bytes": layout.chunk_bytes,
        "placements": [
            {"name": name, "chain": place.slot, "position": place.position, "rank": place.rank, "why": place.why}
            for name, place in zip(_names(layout), layout.plan.placements, strict=True)
        ],
        "payloads": [
            {"kind": p.kind, "payload_bytes": round(p.size_bytes), "t_bcast_s": times[p.kind]} for p in payloads
        ],
    }
    rows = [
        ("trainer's uplink", format_rate(fleet.b0_bytes_per_s)),
        ("workers", f"{fleet.workers}, links {fleet.source}"),
        ("chains", layout.plan.why),
    ]
    tables = [_times_table(p, times[p.kind]) for p in payloads]
    shown = [facts(rows), *tables]
    if fleet.equal_bytes_per_s is None:
        shown.append(_layout_table(layout, fleet))

    def draw(path: Path) -> None:
        from chappe.cli.planplot import plot_arrivals, plot_topology

        first = payloads[0]
        if fleet.equal_bytes_per_s is None:
            star = star_forecast(first.size_bytes, fleet.b0_bytes_per_s, fleet.links)
            plot_arrivals(path, layout.times_s, star.times_s, times[first.kind]["floor"])
        else:
            sizes = [(p.kind, p.size_bytes) for p in payloads]
            plot_topology(path, sizes, fleet.b0_bytes_per_s, fleet.equal_bytes_per_s, fleet.workers)

    return found, stack(*shown), draw


def _names(layout: ChainForecast) -> list[str]:
    return [name for chain in layout.chains for name in chain]


def t_bcast(
    payload: Payload, fleet: Fleet, planned: ChainForecast, fractions: tuple[float, ...]
) -> dict[str, dict[str, float]]:
    """T(f) in seconds by topology and fraction; the published closed forms only where all links are equal."""
    f, b0, rate = payload.size_bytes, fleet.b0_bytes_per_s, fleet.equal_bytes_per_s
    found = {"floor": {str(q): physical_bound_s(f, b0, fleet.links, fraction=q) for q in fractions}}
    if rate is None:
        star = star_forecast(f, b0, fleet.links)
        found["star"] = {str(q): star.at(q) for q in fractions}
    else:
        equal = EqualFleet(f, b0, rate, fleet.workers)
        found["star_unlimited"] = {str(q): star_unlimited_s(equal, q) for q in fractions}
        found["star"] = {str(q): star_limited_s(equal, q) for q in fractions}
        found["chains_64mb"] = {
            str(q): chain_pipelined_s(equal, q, chunk_bytes=PUBLISHED_CHUNK_BYTES) for q in fractions
        }
    found["chains"] = {str(q): planned.at(q) for q in fractions}
    return found


def _times_table(payload: Payload, times: dict[str, dict[str, float]]) -> Any:
    fractions = list(times["floor"])
    whole = times["floor"]["1.0"]
    return grid(
        (f"{payload.kind}, {format_size(payload.size_bytes)}", *(f"T({q})" for q in fractions), "T(1.0)/floor"),
        (
            (LABELS[name], *(figure_s(row[q]) for q in fractions), f"{row['1.0'] / whole:.3f}")
            for name, row in times.items()
        ),
    )


def _layout_table(layout: ChainForecast, fleet: Fleet) -> Any:
    """Worker by worker, chain by chain from the head."""
    links = {link.name: link for link in fleet.links}
    rows = []
    for c, (chain, times) in enumerate(zip(layout.chains[:CHAINS_SHOWN_MAX], layout.times_s, strict=False), start=1):
        for position, (name, time_s) in enumerate(zip(chain, times, strict=True), start=1):
            link = links[name]
            rows.append(
                (
                    f"{c}.{position}",
                    name + ("" if link.dialable else " (NAT)") + (" (demoted)" if link.demoted else ""),
                    format_rate(link.downlink_bytes_per_s),
                    format_rate(link.uplink_bytes_per_s),
                    figure_s(time_s),
                )
            )
    table = grid(("chain.position", "worker", "down", "up", "has everything after"), rows)
    table.columns[1].justify = "left"
    return table
