"""Who takes part: late joiners, a publisher that leaves, workers that are drained, forgotten or not needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from chappe.cli.localfleet import LocalFleet, RelaySpec
from chappe.publisher import AsyncPublisher
from tests.integration.fleet_tools import (
    HTTP,
    HeldOrigins,
    assert_same_bytes,
    chappe,
    make_snapshot,
    metric_reaches,
    metrics,
    payload_bytes,
    published,
    relays,
)

RECEIVED, FORWARDED = "relayd_received_bytes_total", "relayd_forwarded_bytes_total"
MB = 1 << 20


async def test_joining_draining_and_forgetting_in_the_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain of three, held at half: a fourth joins at its end, the second is drained, the rest get all of it."""
    source = make_snapshot(tmp_path / "model", 4 * MB, seed=1)
    held = HeldOrigins(monkeypatch, 0.5)
    async with (
        LocalFleet(tmp_path / "fleet", relays(3)) as fleet,
        AsyncPublisher(fleet.address, uplink="40mbit") as publisher,
    ):
        publication = await publisher.publish(source, chains=1)
        for process in fleet.workers.values():
            await metric_reaches(process, RECEIVED, 0.4 * 4 * MB)
        (chain,) = (await fleet.status()).publications[0].chains
        head, middle, tail = chain.names

        late = await fleet.start_relay(RelaySpec("late", HTTP))
        await metric_reaches(late, RECEIVED, 0.4 * 4 * MB)
        shown = {relay.name: relay for relay in (await fleet.status()).relays}
        assert (shown["late"].parent, shown["late"].position) == (tail, 3)

        drained = fleet.workers.pop(middle)
        assert await chappe(fleet, "drain", middle) == (0, f"{middle}: drained\n", "")
        assert await drained.wait() == 0
        held.gates[0].open()
        result = await publication.wait(timeout_s=60)
        assert (result.targeted, result.installed, result.lost) == (3, 3, (middle,))
        assert result.chains == ((head, tail, "late"),)
        assert_same_bytes(fleet, source, head, tail, "late")
        for process in fleet.workers.values():
            assert (await metrics(process))[RECEIVED] <= payload_bytes(source) + MB

        code, _, err = await chappe(fleet, "forget", head)
        assert code == 1
        assert "drain it" in err
        assert await chappe(fleet, "forget", middle) == (0, f"{middle}: forgotten\n", "")
        assert sorted(relay.name for relay in (await fleet.status()).relays) == sorted([head, tail, "late"])


async def test_the_publisher_leaves_when_the_chain_can_finish_alone(tmp_path: Path) -> None:
    """`publish --until 0.5` ends while the second half still waits for bytes; who joins later is fed by the tail."""
    source = make_snapshot(tmp_path / "model", 3 * MB, seed=2)
    async with LocalFleet(tmp_path / "fleet", relays(2, "--limit-uplink", "8mbit")) as fleet:
        result = await published(fleet, source, "--until", "0.5", "--chains", "1")
        ((head, tail),) = result["chains"]
        assert (result["targeted"], result["installed"], result["installed_fraction"]) == (2, 1, 0.5)
        assert result["t_bcast"]["0.5"] > 0
        assert (result["t_bcast"]["0.9"], result["t_bcast"]["1.0"]) == (None, None)
        status = await fleet.wait_status(lambda s: all(r.installed == result["version"] for r in s.relays))
        (publication,) = status.publications
        assert (publication.state, publication.installed_fraction) == ("closed", 1.0)
        assert publication.t_bcast["1.0"] > result["t_bcast"]["0.5"]
        assert_same_bytes(fleet, source, head, tail)

        size, before = payload_bytes(source), await metrics(fleet.workers[head])
        await fleet.start_relay(RelaySpec("late", HTTP))
        status = await fleet.wait_status(lambda s: [r.installed for r in s.relays] == [result["version"]] * 3)
        assert {relay.name: relay.parent for relay in status.relays}["late"] == tail
        assert (await metrics(fleet.workers[tail]))[FORWARDED] >= size
        after = await metrics(fleet.workers[head])
        assert (after[RECEIVED], after[FORWARDED]) == (before[RECEIVED], before[FORWARDED])
        assert_same_bytes(fleet, source, "late")
        (publication,) = (await fleet.status()).publications
        assert publication.targeted == 2  # it was closed before


async def test_a_late_joiner_costs_the_origin_nothing(tmp_path: Path) -> None:
    """Also while the publisher is still there, holding everything."""
    source = make_snapshot(tmp_path / "model", 4 * MB, seed=3)
    async with LocalFleet(tmp_path / "fleet", relays(1)) as fleet, AsyncPublisher(fleet.address) as publisher:
        assert (await (await publisher.publish(source)).wait(timeout_s=60)).installed == 1
        await fleet.start_relay(RelaySpec("late", HTTP))
        status = await fleet.wait_status(lambda s: [r.installed for r in s.relays] == [1, 1])
        assert {relay.name: relay.parent for relay in status.relays}["late"] == "w1"
        size = payload_bytes(source)
        assert (await metrics(fleet.workers["w1"]))[FORWARDED] >= size
        assert (await metrics(fleet.workers["w1"]))[RECEIVED] <= size + MB  # what the origin has sent in all
        assert_same_bytes(fleet, source, "w1", "late")
