"""What the commands of `chappe plan` share: payloads, the period, and T_bcast where it is not given."""

from __future__ import annotations

import math
from dataclasses import dataclass

from chappe.cli.planfleet import Fleet, fleet_of
from chappe.cli.plankeys import LinkKeys, PayloadKeys, PeriodKeys, Scenario, needed
from chappe.cli.settings import TlsSettings
from chappe.errors import UsageError
from chappe.planning.broadcast import delta_bytes, snapshot_bytes
from chappe.planning.errors import Infeasible
from chappe.planning.forecast import ChainForecast, chain_forecast
from chappe.planning.staleness import kappa_of
from chappe.units import format_duration, format_size

_SAME = 1e-3


@dataclass(frozen=True, slots=True)
class Payload:
    """`kind` is full, compressed or delta."""

    kind: str
    size_bytes: float


@dataclass(frozen=True, slots=True)
class Broadcast:
    """T_bcast in seconds and where it comes from; payload and fleet only where it was worked out from them."""

    t_bcast_s: float
    source: str
    payload: Payload | None = None
    fleet: Fleet | None = None


class Living(TlsSettings):
    """A fleet that runs."""

    coordinator: str | None = None
    """HOST:PORT of a coordinator: T_bcast as it measured; for a payload given by flag, as expected from that."""


NOT_LIVING = Living()


def payloads_of(keys: PayloadKeys) -> list[Payload]:
    """Full, compressed and delta, as far as they are given. Raises UsageError for none, and for what clashes."""
    full = _full(keys)
    found = [] if full is None else [Payload("full", full)]
    if keys.compressed is not None:
        found.append(Payload("compressed", keys.compressed))
    delta = keys.delta
    if delta is None and (keys.delta_density is not None or keys.delta_bytes_per_change is not None):
        needed(
            "a delta by density",
            delta_density=keys.delta_density,
            delta_bytes_per_change=keys.delta_bytes_per_change,
            parameters=keys.parameters,
            bytes_per_parameter=keys.bytes_per_parameter,
        )
        assert keys.delta_density is not None
        assert keys.delta_bytes_per_change is not None
        assert keys.bytes_per_parameter is not None
        assert full is not None
        delta = round(
            delta_bytes(
                full,
                keys.delta_density,
                bytes_per_element=keys.bytes_per_parameter,
                bytes_per_change=keys.delta_bytes_per_change,
            )
        )
    elif keys.delta_density is not None and keys.delta_bytes_per_change is not None:
        raise UsageError("--delta and --delta-density say the same twice: leave one out")
    if delta is not None:
        found.append(Payload("delta", delta))
    if not found:
        raise UsageError("a broadcast needs --payload, or --parameters and --bytes-per-parameter, or --delta")
    return found


def _full(keys: PayloadKeys) -> float | None:
    if keys.parameters is None and keys.bytes_per_parameter is None:
        return keys.payload
    needed("a snapshot's size", parameters=keys.parameters, bytes_per_parameter=keys.bytes_per_parameter)
    assert keys.parameters is not None
    assert keys.bytes_per_parameter is not None
    size = snapshot_bytes(keys.parameters, keys.bytes_per_parameter)
    if keys.payload is not None and not math.isclose(size, keys.payload, rel_tol=_SAME):
        raise UsageError(
            f"--payload is {format_size(keys.payload)}, --parameters x --bytes-per-parameter {format_size(size)}: "
            "leave one out"
        )
    return size


def sent(keys: PayloadKeys) -> Payload:
    """The payload that --send names, else the first. Raises UsageError."""
    found = payloads_of(keys)
    for payload in found:
        if keys.send in (None, payload.kind):
            return payload
    raise UsageError(f"--send {keys.send}: its size is not given")


def kappa_of_period(keys: PeriodKeys) -> int | None:
    """kappa, from --kappa or --staleness. Raises UsageError when they do not agree."""
    if keys.staleness is None:
        return keys.kappa
    kappa = kappa_of(keys.staleness)
    if keys.kappa not in (None, kappa):
        raise UsageError(f"--kappa {keys.kappa} is not --staleness {keys.staleness} minus one: leave one out")
    return kappa


def forecast(payload: Payload, fleet: Fleet, links: LinkKeys) -> ChainForecast:
    return chain_forecast(
        payload.size_bytes, fleet.b0_bytes_per_s, fleet.links, fraction=links.fraction, chains=links.chains
    )


def broadcast_of(period: PeriodKeys, payload: PayloadKeys, links: LinkKeys, scenario: Scenario) -> Broadcast:
    """T_bcast as given, else worked out for the fleet. `links` are the flags as they came; the rest is merged.

    Raises UsageError, and Infeasible when the target fraction can never be reached.
    """
    if period.t_bcast is not None:
        return Broadcast(period.t_bcast, "given")
    what = [key for key, value in payload.model_dump().items() if value is not None]
    keys = scenario.merge(links)
    if not what and keys.uplink is None and keys.workers is None and not scenario.hosts:
        raise UsageError(
            "give --t-bcast, or a payload and links to work it out from (--payload --uplink --workers ...)"
        )
    chosen, fleet = sent(payload), fleet_of(links, scenario)
    found = forecast(chosen, fleet, keys)
    t_bcast_s = reached(found.at(keys.fraction), keys.fraction, fleet)
    source = (
        f"T({keys.fraction:g}) of {format_size(chosen.size_bytes)} ({chosen.kind}) to {fleet.workers} workers in "
        f"{len(found.chains)} chains"
    )
    return Broadcast(t_bcast_s, source, chosen, fleet)


def reached(t_bcast_s: float, fraction: float, fleet: Fleet) -> float:
    """Raises Infeasible for a time that never comes."""
    if math.isfinite(t_bcast_s):
        return t_bcast_s
    raise Infeasible(
        f"{fraction:.0%} of {fleet.workers} workers can never be reached: too many cannot be dialled; open a port on "
        "some of them, or lower --fraction"
    )


def seconds(value: float) -> str:
    """`1563 s (26 min 03 s)`: the figure that goes into the formulas, and one for people."""
    if not math.isfinite(value) or abs(value) < 120:
        return figure_s(value)
    return f"{figure_s(value)} ({'-' if value < 0 else ''}{format_duration(abs(value))})"


def figure_s(value: float) -> str:
    """`1563 s`, for tables; `never` for what does not happen."""
    if not math.isfinite(value):
        return "never"
    return f"{value:.4g} s" if abs(value) < 1000 else f"{value:.0f} s"
