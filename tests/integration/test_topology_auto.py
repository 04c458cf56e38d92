"""`--topology auto`, the default, with real daemons: stripes only where links are known, and worth them.

| fleet                                             | then |
|---------------------------------------------------|------|
| equal links                                       | exactly the chains of `--topology chains` |
| unequal links, all declared                       | stripes; `explain` says R, the bound, both promises |
| a link that nobody knows                          | plain, and it is named |
| that one comes and goes between publications      | plain, then stripes again |
| a delta, a compressed snapshot                    | plain lanes beside a striped full object |
| a relay of a release without stripes              | plain, and it is named |
| such a relay joins while stripes are on their way | they are given up, everybody gets everything |
| a publisher without stripes takes over halfway    | the same |
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chappe.cli.localfleet import LocalFleet, RelaySpec
from chappe.coordinator.status import status_json
from chappe.publisher import AsyncPublisher
from chappe.units import format_duration
from tests.integration.fleet_tools import (
    HTTP,
    HeldOrigins,
    assert_same_bytes,
    chappe,
    make_snapshot,
    metric_reaches,
    payload_bytes,
    start_publish,
)

pytestmark = pytest.mark.asyncio(loop_scope="function")

RECEIVED = "relayd_received_bytes_total"
OLD = "tests.integration.old_relayd"
OLD_PUBLISHER = "tests.integration.old_publisher"
UPLINKS = {"w1": 80, "w2": 80, "w3": 40, "w4": 20, "w5": 20}


def spec(name: str, up: int, *flags: str) -> RelaySpec:
    """Limited to what it declares: the next version is laid by what was measured."""
    links = (
        "--uplink",
        f"{up}mbit",
        "--downlink",
        "80mbit",
        "--limit-uplink",
        f"{up}mbit",
        "--limit-downlink",
        "80mbit",
    )
    return RelaySpec(name, (*flags, *links))


UNEQUAL = tuple(spec(name, up) for name, up in UPLINKS.items())
WITH_METRICS = tuple(spec(name, up, *HTTP) for name, up in UPLINKS.items())


async def newest(fleet: LocalFleet) -> dict[str, Any]:
    """The newest publication as `chappe status --json` shows it, without a process for each look."""
    shown: dict[str, Any] = json.loads(json.dumps(status_json(await fleet.status())))["publications"][0]
    return shown


async def test_equal_links_have_the_chains_that_they_had(tmp_path: Path) -> None:
    source = make_snapshot(tmp_path / "model", 2 << 20, seed=1)
    specs = tuple(spec(f"w{i}", 80) for i in range(1, 5))
    shown = {}
    for topology in ("chains", "auto"):
        async with (
            LocalFleet(tmp_path / topology, specs) as fleet,
            AsyncPublisher(fleet.address, uplink="160mbit", limit_uplink="160mbit") as publisher,
        ):
            asked = {} if topology == "auto" else {"topology": topology}
            await (await publisher.publish(source, version=1, **asked)).wait(1.0, timeout_s=60)
            shown[topology] = await newest(fleet)
    assert {one["topology"] for one in shown.values()} == {"chains", "auto"}
    assert shown["auto"]["chains"] == shown["chains"]["chains"]
    assert len(shown["auto"]["chains"]) == 2
    assert shown["auto"]["layout"]["stripe_weights"] == [1]
    assert shown["auto"]["layout"]["reason"] == f"plain: links are equal; {shown['chains']['layout']['reason']}"


async def test_unequal_links_are_striped_and_explained(tmp_path: Path) -> None:
    source = make_snapshot(tmp_path / "model", 8 << 20, seed=2)
    async with (
        LocalFleet(tmp_path / "fleet", UNEQUAL) as fleet,
        AsyncPublisher(fleet.address, uplink="160mbit", limit_uplink="160mbit") as publisher,
    ):
        result = await (await publisher.publish(source, version=1)).wait(1.0, timeout_s=60)
        assert_same_bytes(fleet, source, *UPLINKS)
        shown = await newest(fleet)
        code, out, err = await chappe(fleet, "explain", "w4", "--json")
        assert code == 0, err
        explained = json.loads(out)["publication"]
        code, text, err = await chappe(fleet, "explain", "w4")
        assert code == 0, err
        code, table, err = await chappe(fleet, "status")
        assert code == 0, err
    layout = shown["layout"]
    weights = layout["stripe_weights"]
    assert (shown["topology"], shown["installed"]) == ("auto", len(UPLINKS))
    assert len(weights) >= 2
    assert explained["layout"] == layout
    # R reaches everybody, w4 sends a quarter of it at most: its uplink is a quarter of its downlink
    assert result.floor_s is not None
    bound = payload_bytes(source) / result.floor_s
    assert explained["bound_bytes_per_s"] == pytest.approx(bound, rel=0.01)
    assert 0.7 * bound < layout["rate_bytes_per_s"] <= bound
    inner = [place for place in explained["places"] if place["child"] is not None]
    assert explained["sends_share"] == pytest.approx(sum(weights[p["stripe"]] for p in inner) / sum(weights))
    assert explained["sends_share"] * layout["rate_bytes_per_s"] <= 20e6 / 8
    assert [place["stripe"] for place in explained["places"]] == list(range(len(weights)))
    assert result.floor_s < layout["striped_s"] < layout["plain_s"]
    assert f"striped {format_duration(layout['striped_s'])}, plain {format_duration(layout['plain_s'])}" in text
    assert "R, into every worker" in text
    assert f"{len(weights)} stripes, together" in text
    assert "plain chains" in text
    assert f"{len(weights)} stripes, together" in table


async def test_a_link_that_nobody_knows_keeps_chains_plain_while_it_is_there(tmp_path: Path) -> None:
    source = make_snapshot(tmp_path / "model", 8 << 20, seed=3)
    async with (
        LocalFleet(tmp_path / "fleet", (*UNEQUAL, RelaySpec("mute"))) as fleet,
        AsyncPublisher(fleet.address, uplink="160mbit", limit_uplink="160mbit", base_cache=None) as publisher,
    ):
        await (await publisher.publish(source, version=1, payload="full")).wait(1.0, timeout_s=60)
        plain = await newest(fleet)
        assert plain["layout"]["stripe_weights"] == [1]
        assert plain["layout"]["reason"].startswith("plain: nobody has declared or measured the links of mute; ")
        await fleet.workers.pop("mute").stop()
        await (await publisher.publish(source, version=2, payload="full")).wait(1.0, timeout_s=60)
        assert len((await newest(fleet))["layout"]["stripe_weights"]) >= 2
        await fleet.start_relay(spec("late", 40))
        await fleet.wait_status(lambda s: any(r.name == "late" and r.installed == 2 for r in s.relays))
        await (await publisher.publish(source, version=3, payload="full")).wait(1.0, timeout_s=60)
        again = await newest(fleet)
        assert len(again["layout"]["stripe_weights"]) >= 2
        assert sum("late" in chain for chain in again["chains"]) == len(again["layout"]["stripe_weights"])
        assert_same_bytes(fleet, source, *UPLINKS, "late", version=3)


@pytest.mark.parametrize("payload", ["delta", "compressed"])
async def test_lanes_stay_plain(tmp_path: Path, payload: str) -> None:
    first = make_snapshot(tmp_path / "first", 8 << 20, seed=4)
    async with (
        LocalFleet(tmp_path / "fleet", UNEQUAL) as fleet,
        AsyncPublisher(
            fleet.address, uplink="160mbit", limit_uplink="160mbit", base_cache=tmp_path / "base"
        ) as publisher,
    ):
        await (await publisher.publish(first, version=1, payload="full")).wait(1.0, timeout_s=60)
        assert len((await newest(fleet))["layout"]["stripe_weights"]) >= 2
        await (await publisher.publish(first, version=2, payload=payload)).wait(1.0, timeout_s=60)
        shown = await newest(fleet)
        assert shown["kind"] == {"delta": "delta", "compressed": "full-compressed"}[payload]
        assert sorted(name for chain in shown["chains"] for name in chain) == sorted(UPLINKS)
        assert_same_bytes(fleet, first, *UPLINKS, version=2)


async def test_an_older_relay_keeps_chains_plain(tmp_path: Path) -> None:
    source = make_snapshot(tmp_path / "model", 8 << 20, seed=5)
    async with (
        LocalFleet(tmp_path / "fleet", UNEQUAL) as fleet,
        AsyncPublisher(fleet.address, uplink="160mbit", limit_uplink="160mbit") as publisher,
    ):
        await fleet.start_relay(spec("old", 40), module=OLD)
        await fleet.wait_joined("old")
        await (await publisher.publish(source, version=1)).wait(1.0, timeout_s=60)
        shown = await newest(fleet)
        assert shown["layout"]["stripe_weights"] == [1]
        assert shown["layout"]["reason"].startswith("plain: old is of a release without stripes; ")
        assert_same_bytes(fleet, source, *UPLINKS, "old")


async def test_an_older_relay_that_joins_halfway_ends_the_stripes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origins = HeldOrigins(monkeypatch, 0.5)
    source = make_snapshot(tmp_path / "model", 8 << 20, seed=6)
    size = payload_bytes(source)
    async with (
        LocalFleet(tmp_path / "fleet", WITH_METRICS) as fleet,
        AsyncPublisher(fleet.address, uplink="160mbit", limit_uplink="160mbit") as publisher,
    ):
        publication = await publisher.publish(source, version=1)
        for process in fleet.workers.values():
            await metric_reaches(process, RECEIVED, 0.4 * size)
        assert len((await newest(fleet))["layout"]["stripe_weights"]) >= 2
        await fleet.start_relay(spec("old", 40, *HTTP), module=OLD)
        await metric_reaches(fleet.workers["old"], RECEIVED, 0.4 * size)
        shown = await newest(fleet)
        assert shown["layout"]["reason"] == "plain: old came, which is of a release without stripes"
        assert sorted(name for chain in shown["chains"] for name in chain) == sorted([*UPLINKS, "old"])
        origins.gates[0].open()
        await publication.wait(1.0, timeout_s=60)
        assert_same_bytes(fleet, source, *UPLINKS, "old")
        for process in fleet.workers.values():
            assert await metric_reaches(process, RECEIVED, size) < 1.25 * size, "what was held was not sent again"


async def test_an_older_publisher_that_takes_over_halfway_ends_the_stripes(tmp_path: Path) -> None:
    source = make_snapshot(tmp_path / "model", 16 << 20, seed=7)
    size = payload_bytes(source)
    flags = ("--version", "1", "--payload", "full", "--base-cache", "none", "--uplink", "160mbit")
    async with LocalFleet(tmp_path / "fleet", WITH_METRICS) as fleet:
        first = await start_publish(fleet, source, *flags, "--limit-uplink", "20mbit")
        await fleet.coordinator.logged(lambda line: line["event"] == "root_announced")
        for process in fleet.workers.values():
            await metric_reaches(process, RECEIVED, 0.1 * size)
        assert len((await newest(fleet))["layout"]["stripe_weights"]) >= 2
        await first.kill()
        received = [await metric_reaches(process, RECEIVED, 0.0) for process in fleet.workers.values()]
        assert max(received) < size, "nobody has it all: the bytes are wanted from somebody"
        second = await start_publish(fleet, source, *flags, module=OLD_PUBLISHER)
        await second.output()
        assert second.returncode == 0, second.tail()
        shown = await newest(fleet)
        assert shown["layout"]["stripe_weights"] == [1]
        assert shown["layout"]["reason"].endswith("came, which is of a release without stripes")
        assert sorted(name for chain in shown["chains"] for name in chain) == sorted(UPLINKS)
        assert_same_bytes(fleet, source, *UPLINKS)
        for process in fleet.workers.values():
            assert await metric_reaches(process, RECEIVED, size) < 1.25 * size, "what was held was not sent again"
