"""Compressed full snapshots, end to end: real daemons, bit for bit whatever happens.

| happens                                           | then |
|---------------------------------------------------|------|
| asked for                                         | fewer bytes travel, the full object lands, a newcomer gets it |
| auto, thin links                                  | compressed, and the reason says how much sooner |
| some workers hold a base                          | they get the delta, the others the compressed snapshot |
| what the publisher made does not give the version | every worker gets the full snapshot |
| a relay killed while it applies                   | it lands after its restart |
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from safetensors.numpy import load_file, save_file

from chappe.cli.localfleet import LocalFleet, RelaySpec
from chappe.origin.blocksources import MakeBlocks, Whole
from chappe.payload.plan import DeltaPlan
from chappe.publisher import AsyncPublisher
from tests.integration.fleet_tools import HTTP, assert_same_bytes, metrics, published, relays, run_cli

pytestmark = pytest.mark.asyncio(loop_scope="function")

ELEMENTS = 3 << 20
RATE = "16mbit"
THIN = ("--downlink", RATE, "--uplink", RATE, "--limit-downlink", RATE, "--limit-uplink", RATE)  # so probes say, too

SLOW = (*HTTP, "--downlink", "0.1mbit", "--limit-downlink", "0.1mbit")


def weights(folder: Path, seed: int, *, changed: Path | None = None) -> Path:
    """bf16 as trained weights are, or a copy of others in which 1 % has changed."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    if changed is None:
        floats = (0.02 * rng.standard_normal(ELEMENTS, np.float32)).view(np.uint32)
        tensor = (floats >> 16).astype(np.uint16)
    else:
        tensor = load_file(changed / "model.safetensors")["weight"]
        tensor[rng.choice(ELEMENTS, ELEMENTS // 100, replace=False)] += 1
    save_file({"weight": tensor}, folder / "model.safetensors")
    (folder / "config.json").write_text(f'{{"seed": {seed}}}')
    return folder


@pytest_asyncio.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[LocalFleet]:
    async with LocalFleet(tmp_path / "fleet", relays(2), coordinator_flags=HTTP) as running:
        yield running


async def verified(fleet: LocalFleet, *names: str) -> None:
    for name in names:
        code, out, err = await run_cli("verify", str(fleet.store(name)))
        assert code == 0, (name, out, err)


async def test_asked_for_and_a_newcomer_when_the_publisher_is_gone(fleet: LocalFleet, tmp_path: Path) -> None:
    source = weights(tmp_path / "v1", 1)
    shown = await published(fleet, source, "--payload", "compressed", "--base-cache", "none")
    assert (shown["kind"], shown["installed"]) == ("full-compressed", 2)
    assert 0.6 < shown["payload_bytes"] / shown["snapshot_bytes"] < 0.75
    assert [one["kind"] for one in shown["objects"]] == ["full-compressed"]
    assert_same_bytes(fleet, source, "w1", "w2")
    assert (await metrics(fleet.coordinator))['chappe_payload_bytes{kind="full-compressed"}'] == shown["payload_bytes"]
    await fleet.start_relay(RelaySpec("late", HTTP))
    await fleet.wait_status(lambda s: any(r.name == "late" and r.installed == 1 for r in s.relays))
    assert_same_bytes(fleet, source, "late")
    await verified(fleet, "w1", "w2", "late")


async def test_auto_over_thin_links(tmp_path: Path) -> None:
    source = weights(tmp_path / "v1", 1)
    async with LocalFleet(tmp_path / "thin", relays(2, *THIN)) as fleet:
        async with AsyncPublisher(fleet.address, uplink=RATE, limit_uplink=RATE, base_cache=False) as publisher:
            result = await (await publisher.publish(source)).wait(timeout_s=120)
        assert (result.kind, result.installed) == ("full-compressed", 2)
        assert "; compressed: " in result.message.payload_reason
        assert "s less on the links" in result.message.payload_reason
        assert_same_bytes(fleet, source, "w1", "w2")


async def test_deltas_to_those_with_a_base(fleet: LocalFleet, tmp_path: Path) -> None:
    one = weights(tmp_path / "v1", 1)
    two = weights(tmp_path / "v2", 2, changed=one)
    async with AsyncPublisher(fleet.address) as publisher:
        await (await publisher.publish(one)).wait(timeout_s=120)
        await fleet.start_relay(RelaySpec("slow", SLOW))  # v1 takes minutes: it has next to nothing of it
        await fleet.wait_joined("slow")
        await publisher.publish(two)
        status = await fleet.wait_status(
            lambda s: (
                s.publications[0].version == 2
                and s.publications[0].installed == 2
                and any(p.kind == "full-compressed" for p in s.publications[0].payloads)  # it is made after the delta
            )
        )
        shown = status.publications[0]
        assert {p.kind: (p.targeted, p.installed) for p in shown.payloads} == {
            "full-compressed": (1, 0),
            "delta": (2, 2),
        }
        assert shown.payload_reason.startswith("2 of 3 workers hold the base; compressed: ")
    assert_same_bytes(fleet, two, "w1", "w2")


async def test_what_does_not_give_the_version_costs_a_full_transfer(
    fleet: LocalFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = weights(tmp_path / "v1", 1)
    right = Whole.opened

    @contextmanager
    def wrong(self: Whole) -> Iterator[tuple[DeltaPlan, MakeBlocks]]:
        with right(self) as (plan, blocks):
            yield (
                plan,
                lambda algorithm, mapper, hands=1: (
                    replace(block, digest=bytes(len(block.digest))) for block in blocks(algorithm, mapper, hands)
                ),
            )

    monkeypatch.setattr(Whole, "opened", wrong)
    async with AsyncPublisher(fleet.address, base_cache=False) as publisher:
        result = await (await publisher.publish(source, payload="compressed")).wait(timeout_s=120)
    assert (result.kind, result.installed) == ("full", 2)
    assert_same_bytes(fleet, source, "w1", "w2")
    await verified(fleet, "w1", "w2")


@pytest.mark.soak
async def test_a_relay_killed_while_it_applies_lands_after_its_restart(fleet: LocalFleet, tmp_path: Path) -> None:
    async with AsyncPublisher(fleet.address, limit_uplink="100mbit", base_cache=False) as publisher:
        for version in (1, 2):
            source = weights(tmp_path / f"v{version}", version)
            publication = await publisher.publish(source, payload="compressed")
            await fleet.wait_status(
                lambda s, v=version: (
                    bool(s.publications) and s.publications[0].version == v and s.relays[0].progress > 0
                )
            )
            await fleet.workers.pop("w1").kill()
            await fleet.start_relay(RelaySpec("w1", HTTP))
            await publication.wait(timeout_s=120)
            await fleet.wait_status(lambda s, v=version: all(r.installed == v for r in s.relays))
            assert_same_bytes(fleet, source, "w1", "w2")
    await verified(fleet, "w1", "w2")
