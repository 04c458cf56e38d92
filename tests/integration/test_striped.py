"""Striped chains with real daemons: unequal uplinks, several parents for each relay, one copy of everything."""

from __future__ import annotations

from pathlib import Path

import pytest

from chappe.cli.localfleet import LocalFleet, RelaySpec
from chappe.publisher import AsyncPublisher
from tests.integration.fleet_tools import HTTP, HeldOrigins, assert_same_bytes, make_snapshot, metric_reaches

RECEIVED = "relayd_received_bytes_total"
UPLINKS = {"w1": 80, "w2": 80, "w3": 40, "w4": 20, "w5": 20}


def linked(name: str, up: int) -> RelaySpec:
    """Limited to what it declares: an idle fleet's probes say the same."""
    rates = {"--uplink": up, "--limit-uplink": up, "--downlink": 80, "--limit-downlink": 80}
    return RelaySpec(name, (*HTTP, *(text for flag, rate in rates.items() for text in (flag, f"{rate}mbit"))))


def unequal() -> tuple[RelaySpec, ...]:
    return tuple(linked(name, up) for name, up in UPLINKS.items())


async def test_unequal_links_are_striped_and_nothing_comes_twice(tmp_path: Path) -> None:
    source = make_snapshot(tmp_path / "model", 24 << 20, seed=1)
    size = sum(p.stat().st_size for p in source.rglob("*") if p.is_file())
    async with (
        LocalFleet(tmp_path / "fleet", unequal()) as fleet,
        AsyncPublisher(fleet.address, uplink="160mbit", limit_uplink="160mbit") as publisher,
    ):
        result = await (await publisher.publish(source, version=1, topology="striped")).wait(1.0, timeout_s=60)
        assert result.installed == len(UPLINKS)
        assert_same_bytes(fleet, source, *UPLINKS)
        for process in fleet.workers.values():
            received = await metric_reaches(process, RECEIVED, size)
            assert received < 1.01 * size, "header, pages and little else beside the payload"
        status = await fleet.wait_status(lambda s: bool(s.publications[0].chains))
        (publication,) = status.publications
        names = [name for chain in publication.chains for name in chain.names]
        assert publication.topology == "striped"
        assert len(names) % len(UPLINKS) == 0
        assert len(names) // len(UPLINKS) >= 2, "everybody stands once in each of two stripes or more"
        assert all(names.count(name) == len(names) // len(UPLINKS) for name in UPLINKS)
        reasons = {relay.name: relay.reason for relay in status.relays}
        assert all("stripes" in reason for reason in reasons.values()), reasons


async def test_a_relay_that_dies_halfway_is_replaced_in_each_of_its_stripes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origins = HeldOrigins(monkeypatch, 0.5)
    source = make_snapshot(tmp_path / "model", 16 << 20, seed=2)
    size = sum(p.stat().st_size for p in source.rglob("*") if p.is_file())
    async with (
        LocalFleet(tmp_path / "fleet", unequal()) as fleet,
        AsyncPublisher(fleet.address, uplink="160mbit", limit_uplink="160mbit") as publisher,
    ):
        publication = await publisher.publish(source, version=1, topology="striped")
        for process in fleet.workers.values():
            await metric_reaches(process, RECEIVED, 0.4 * size)
        await fleet.workers.pop("w1").kill()
        origins.gates[0].open()
        await publication.wait(1.0, timeout_s=60)
        assert_same_bytes(fleet, source, *(name for name in UPLINKS if name != "w1"))
        await fleet.start_relay(unequal()[0])
        await fleet.wait_status(lambda s: any(r.name == "w1" and r.installed == 1 for r in s.relays))
        assert_same_bytes(fleet, source, *UPLINKS)


async def test_equal_links_stay_plain(tmp_path: Path) -> None:
    source = make_snapshot(tmp_path / "model", 2 << 20, seed=3)
    specs = tuple(linked(f"w{i}", 80) for i in range(1, 4))
    async with (
        LocalFleet(tmp_path / "fleet", specs) as fleet,
        AsyncPublisher(fleet.address, uplink="80mbit") as publisher,
    ):
        result = await (await publisher.publish(source, version=1, topology="striped")).wait(1.0, timeout_s=60)
        assert result.installed == 3
        status = await fleet.wait_status(lambda s: bool(s.publications[0].chains))
        assert sorted(n for chain in status.publications[0].chains for n in chain.names) == ["w1", "w2", "w3"]
