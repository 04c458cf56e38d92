"""The fleets of `chappe plan`: equal workers, [[hosts]] of a file, the links of a living fleet, and priced kinds."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator

from chappe.cli.plankeys import (
    Count,
    LinkKeys,
    NotNegative,
    Positive,
    Scenario,
    check_keys,
    needed,
    read_toml,
    tables,
    validated,
)
from chappe.cli.settings import Rate, Settings
from chappe.errors import ConfigError, UsageError
from chappe.planning.activation import Candidate
from chappe.planning.cost import HostGroup
from chappe.planning.forecast import equal_links
from chappe.planning.topology import Link
from chappe.v1 import coordinator_pb2 as pb

_OFFER = re.compile(r"(\d+)\s*x\s*([^@\s]+)\s*@\s*([0-9.eE+-]+)\s*(?:/\s*([0-9.eE+-]+))?")
_KIND = re.compile(r"\s*(\d+)\s*x\s*([^@\s]+)\s*(?:@\s*([0-9.eE+-]+)\s*)?")


class HostKeys(Settings):
    """One [[hosts]] table: a host, or `count` of a kind."""

    name: str
    count: Count = 1
    downlink: Rate | None = None
    uplink: Rate | None = None
    nat: Annotated[bool, BeforeValidator(lambda value: _bool(value))] = False
    """Nobody can dial it."""
    price_per_hour: NotNegative | None = None
    rollouts_per_s: Positive | None = None

    def names(self) -> list[str]:
        return [self.name] if self.count == 1 else [f"{self.name}-{i}" for i in range(1, self.count + 1)]


def _bool(value: Any) -> Any:
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, not {value!r}")  # noqa: TRY004  pydantic reports ValueErrors
    return value


@dataclass(frozen=True, slots=True)
class Fleet:
    """Links and the origin's uplink. `equal` has the rate when all workers have it, up and down."""

    b0_bytes_per_s: float
    links: tuple[Link, ...]
    equal_bytes_per_s: float | None
    source: str

    @property
    def workers(self) -> int:
        return len(self.links)


def read_hosts(keys: LinkKeys, scenario: Scenario) -> list[HostKeys]:
    """The hosts of --fleet, else of the scenario. Raises ConfigError that names the table and the key."""
    where, found = f"{scenario.path}", scenario.hosts
    if keys.fleet is not None:
        path = keys.fleet
        if scenario.path is not None and scenario.values.get("fleet") == str(path):
            path = scenario.path.parent / path  # a scenario and its fleet travel together
        document = read_toml("--fleet", path)
        check_keys(f"{path}", document, ("hosts",))
        where, found = f"{path}", tables(f"{path}", document)
        if not found:
            raise ConfigError(f"{path}: no [[hosts]]")
    hosts, names = [], set[str]()
    for number, table in enumerate(found, start=1):
        place = f"{where}: [[hosts]] number {number}"
        check_keys(place, table, HostKeys.model_fields)
        host = validated(HostKeys, table, place)
        for name in host.names():
            if name in names:
                raise ConfigError(f"{place}: name: {name!r} is taken")
            names.add(name)
        hosts.append(host)
    return hosts


def fleet_of(flags: LinkKeys, scenario: Scenario) -> Fleet:
    """Unequal links where there are hosts with links, else equal ones; --workers as a flag means equal ones.

    Raises UsageError that names what is missing.
    """
    keys = scenario.merge(flags)
    equal = {"workers", "fleet"} & flags.model_fields_set == {"workers"}
    hosts = [] if equal else read_hosts(keys, scenario)
    if any(host.downlink or host.uplink for host in hosts):
        needed("a fleet of [[hosts]]", uplink=keys.uplink)
        assert keys.uplink is not None
        return Fleet(keys.uplink, tuple(link for host in hosts for link in _links(host)), None, "declared")
    needed("a fleet", uplink=keys.uplink, workers=keys.workers, worker_downlink=keys.worker_downlink)
    assert keys.uplink is not None
    assert keys.workers is not None
    assert keys.worker_downlink is not None
    down = keys.worker_downlink
    up = down if keys.worker_uplink is None else keys.worker_uplink
    return Fleet(keys.uplink, equal_links(keys.workers, down, up), down if up == down else None, "declared")


def _links(host: HostKeys) -> list[Link]:
    if host.downlink is None or host.uplink is None:
        raise ConfigError(f"host {host.name!r}: {'downlink' if host.downlink is None else 'uplink'} is missing")
    return [Link(n, n, host.uplink, host.downlink, "declared", dialable=not host.nat) for n in host.names()]


def living_fleet(status: pb.Status, uplink_bytes_per_s: float | None) -> Fleet:
    """The links that the coordinator believes in. Raises UsageError without relays, or without any uplink for B0."""
    links = [
        Link(
            relay.name,
            relay.name,
            relay.uplink_bytes_per_s,
            relay.downlink_bytes_per_s,
            relay.source,
            dialable=relay.dialable != "no",
            demoted=relay.demoted,
        )
        for relay in status.relays
        if relay.uplink_bytes_per_s > 0 and relay.downlink_bytes_per_s > 0
    ]
    if not links:
        raise UsageError("--coordinator: its fleet has no relays")
    if uplink_bytes_per_s is None:
        known = [origin.uplink_bytes_per_s for origin in status.origins if origin.uplink_bytes_per_s > 0]
        if not known:
            raise UsageError("--coordinator: its fleet has no origin at present: give --uplink")
        uplink_bytes_per_s = max(known)
    return Fleet(uplink_bytes_per_s, tuple(links), None, "as the coordinator has them")


def candidates_of(hosts: Sequence[HostKeys]) -> list[Candidate]:
    """Hosts with price and rate. Raises ConfigError that names the host without."""
    found = []
    for host in hosts:
        if host.price_per_hour is None or host.rollouts_per_s is None:
            missing = "price_per_hour" if host.price_per_hour is None else "rollouts_per_s"
            raise ConfigError(f"host {host.name!r}: {missing} is missing")
        found += [Candidate(name, host.price_per_hour, host.rollouts_per_s) for name in host.names()]
    return found


def offered(texts: Sequence[str], rollouts_per_s: float | None) -> list[HostKeys]:
    """`8xRTX-5090@0.35/0.33, 2xA100@3.06` to kinds of hosts. Raises UsageError that names the kind."""
    hosts: list[HostKeys] = []
    for text in (part.strip() for given in texts for part in given.split(",")):
        match = _OFFER.fullmatch(text)
        if match is None:
            raise UsageError(f"--offers: {text!r} is not an offer: write it like 8xRTX-5090@0.35/0.33")
        count, name, price, rate = match.groups()
        if rate is None and rollouts_per_s is None:
            raise UsageError(f"--offers: {text!r} has no rollouts per second: write {text}/RATE, or --rollouts-per-s")
        if any(name == host.name for host in hosts):
            raise UsageError(f"--offers: {name!r} is there twice")
        values = {"price_per_hour": price, "rollouts_per_s": rollouts_per_s if rate is None else rate}
        hosts.append(validated(HostKeys, {"name": name, "count": count, **values}, f"--offers: {text!r}"))
    return hosts


def price_list(texts: Sequence[str]) -> dict[str, float]:
    """NAME=PRICE to a table. Raises UsageError."""
    prices = {}
    for text in texts:
        name, equals, price = text.rpartition("=")
        if not equals or not name.strip():
            raise UsageError(f"--price: {text!r} is not NAME=PRICE, like A100=3.06")
        prices[name.strip()] = _price("--price", text, price)
    return prices


def kinds(flag: str, texts: Sequence[str], prices: Mapping[str, float]) -> list[HostGroup]:
    """`4xA100@3.06, 8xRTX-5090` to groups; kinds without a price take it from the table. Raises UsageError."""
    groups = []
    for text in (part for given in texts for part in given.split(",")):
        match = _KIND.fullmatch(text)
        if match is None:
            raise UsageError(f"{flag}: {text.strip()!r} is not a kind of host: write it like 8xA100@3.06")
        count, name, price = match.groups()
        if price is None and name not in prices:
            raise UsageError(f"{flag}: {name!r} has no price: write {count}x{name}@PRICE, or give --price {name}=PRICE")
        groups.append(HostGroup(name, int(count), prices[name] if price is None else _price(flag, text, price)))
    return groups


def _price(flag: str, text: str, price: str) -> float:
    try:
        value = float(price)
    except ValueError:
        value = float("nan")
    if not 0 <= value < float("inf"):
        raise UsageError(f"{flag}: {text.strip()!r} has no price per hour of zero or more")
    return value
