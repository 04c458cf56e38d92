"""The publisher against a real coordinator, over real gRPC, with relays that fetch and verify in memory."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from relay_fake import FakeRelay
from safetensors.numpy import load

from chappe import AsyncPublisher
from chappe.clock import boot_now
from chappe.coordinator.config import CoordinatorSettings
from chappe.coordinator.daemon import Coordinator, open_coordinator
from chappe.errors import (
    CoordinatorUnavailableError,
    PublicationCancelledError,
    PublicationError,
    PublicationFailedError,
    PublicationTimeoutError,
    UsageError,
    VersionConflictError,
)
from chappe.publication import PublicationStatus
from tests.publisher.publisherkit import SIZE, spools, write_model

# ---- what arrives --------------------------------------------------------------------------------------------------


async def test_a_file_arrives_everywhere_bit_for_bit(
    publisher: AsyncPublisher, relays: list[FakeRelay], tmp_path: Path
) -> None:
    model = write_model(tmp_path / "policy.safetensors")
    publication = await publisher.publish(model, version=12)
    result = await publication.wait(timeout_s=60)
    for relay in relays:
        assert (await relay.until_installed(12)).files() == {"policy.safetensors": model.read_bytes()}
    assert (result.run, result.version, result.kind, result.topology) == ("run-1", 12, "full", "auto")
    assert result.payload_bytes == result.snapshot_bytes == model.stat().st_size
    assert (result.targeted, result.installed, result.installed_fraction, result.lost) == (2, 2, 1.0, ())
    assert sorted(name for chain in result.chains for name in chain) == ["w0", "w1"]
    assert result.root.startswith("xxh3_128:")
    assert result.floor_s is not None
    assert all(seconds is not None for seconds in result.t_bcast.values())
    assert result.t_bcast.keys() == {"0.5", "0.9", "1.0"}
    assert publication.done
    assert publication.result() == result


async def test_a_directory_arrives_with_its_sidecars(
    publisher: AsyncPublisher, relays: list[FakeRelay], tmp_path: Path
) -> None:
    directory = tmp_path / "model"
    write_model(directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps({"hidden": 7}))
    (directory / "tokenizer").mkdir()
    (directory / "tokenizer" / "vocab.txt").write_text("")
    await (await publisher.publish(directory, version=1)).wait(timeout_s=60)
    for relay in relays:
        files = (await relay.until_installed(1)).files()
        assert files["model.safetensors"] == (directory / "model.safetensors").read_bytes()
        assert files["config.json"] == b'{"hidden": 7}'
        assert files["tokenizer/vocab.txt"] == b""


async def test_tensors_may_be_changed_once_publish_returns(
    publisher: AsyncPublisher, relays: list[FakeRelay], tmp_path: Path
) -> None:
    weights = {"w": np.arange(SIZE, dtype=np.float32)}
    publication = await publisher.publish(weights)
    weights["w"][:] = -1
    result = await publication.wait(timeout_s=60)
    assert result.version == 1
    (arrived,) = (await relays[0].until_installed(1)).files().values()
    np.testing.assert_array_equal(load(arrived)["w"], np.arange(SIZE, dtype=np.float32))


async def test_the_copy_of_tensors_is_let_go_before_the_next_is_taken_and_at_the_end(
    coordinator: Coordinator, relays: list[FakeRelay], tmp_path: Path
) -> None:
    async with AsyncPublisher(str(coordinator.address), spool=tmp_path, base_cache=False) as publisher:
        await (await publisher.publish({"w": np.zeros(SIZE)})).wait(timeout_s=60)
        (first,) = spools(tmp_path)
        publication = await publisher.publish({"w": np.ones(SIZE)})
        (second,) = spools(tmp_path)
        assert second != first
        await publication.wait(timeout_s=60)
        assert [relay.installed.keys() for relay in relays] == [{1, 2}, {1, 2}]
    assert spools(tmp_path) == []


async def test_the_copy_is_let_go_when_a_newer_version_is_everywhere(
    publisher: AsyncPublisher, relays: list[FakeRelay], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unwanted: asyncio.Queue[str] = asyncio.Queue()
    act = publisher._opened().session._on_unwanted
    monkeypatch.setattr(
        publisher._opened().session, "_on_unwanted", lambda object_id: (act(object_id), unwanted.put_nowait(object_id))
    )
    first = await publisher.publish({"w": np.zeros(SIZE)})
    await first.wait(timeout_s=60)
    assert len(spools(tmp_path)) == 1
    await (await publisher.publish(write_model(tmp_path / "m.safetensors"))).wait(timeout_s=60)
    assert await unwanted.get() == first.object_id
    assert spools(tmp_path) == []


async def test_the_time_of_the_broadcast_counts_from_the_call(
    publisher: AsyncPublisher, relays: list[FakeRelay], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chappe.publisher.boot_now", lambda: boot_now() - 1000)  # as if the copy had taken so long
    result = await (await publisher.publish({"w": np.zeros(3)})).wait(timeout_s=60)
    assert result.t_bcast["0.5"] is not None
    assert result.t_bcast["0.5"] > 1000


async def test_versions_follow_one_another_on_one_open_publisher(
    publisher: AsyncPublisher, relays: list[FakeRelay], tmp_path: Path
) -> None:
    for version in (1, 2, 3):
        model = write_model(tmp_path / f"v{version}" / "m.safetensors", seed=version)
        result = await (await publisher.publish(model)).wait(timeout_s=60)
        assert result.version == version
        for relay in relays:
            assert (await relay.until_installed(version)).files() == {"m.safetensors": model.read_bytes()}


async def test_a_star_has_the_origin_as_everybodys_parent(
    publisher: AsyncPublisher, relays: list[FakeRelay], tmp_path: Path
) -> None:
    publication = await publisher.publish(write_model(tmp_path / "m.safetensors"), topology="star")
    result = await publication.wait(timeout_s=60)
    assert sorted(result.chains) == [("w0",), ("w1",)]
    assert {relay.parents[publication.object_id] for relay in relays} == {publisher.name}


async def test_a_chain_has_one(publisher: AsyncPublisher, relays: list[FakeRelay], tmp_path: Path) -> None:
    publication = await publisher.publish(write_model(tmp_path / "m.safetensors"), chains=1)
    (chain,) = (await publication.wait(timeout_s=60)).chains
    parents = {relay.name: relay.parents[publication.object_id] for relay in relays}
    assert parents == {chain[0]: publisher.name, chain[1]: chain[0]}


# ---- waiting -------------------------------------------------------------------------------------------------------


async def test_a_lower_fraction_is_reached_first(
    publisher: AsyncPublisher, relays: list[FakeRelay], tmp_path: Path
) -> None:
    relays[1].may_install.clear()
    publication = await publisher.publish(write_model(tmp_path / "m.safetensors"))
    half = await publication.wait(fraction=0.5, timeout_s=60)
    assert half.installed_fraction == 0.5
    assert not publication.done
    with pytest.raises(PublicationError, match="still being published"):
        publication.result()
    with pytest.raises(PublicationTimeoutError, match="50% installed"):
        await publication.wait(timeout_s=0.2)
    relays[1].may_install.set()
    assert (await publication.wait(timeout_s=60)).installed_fraction == 1.0
    assert (await publication.wait(fraction=0.5)).installed_fraction == 1.0


async def test_until_below_one_finishes_there(
    publisher: AsyncPublisher, relays: list[FakeRelay], tmp_path: Path
) -> None:
    relays[1].may_install.clear()
    publication = await publisher.publish(write_model(tmp_path / "m.safetensors"), until=0.5)
    assert (await publication.wait(timeout_s=60)).installed == 1
    relays[1].may_install.set()
    assert (await publication.wait(fraction=1.0, timeout_s=60)).installed == 2


async def test_progress_ends_with_the_result(
    publisher: AsyncPublisher, relays: list[FakeRelay], tmp_path: Path
) -> None:
    publication = await publisher.publish(write_model(tmp_path / "m.safetensors"))
    seen: list[PublicationStatus] = [status async for status in publication.progress()]
    fractions = [status.installed_fraction for status in seen]
    assert fractions == sorted(fractions)
    assert seen[-1] == await publication.wait()
    for status in seen:
        assert status.received_fraction >= status.verified_fraction >= status.installed_fraction


# ---- versions ------------------------------------------------------------------------------------------------------


async def test_the_same_bytes_again_are_a_success_and_nothing_is_sent(
    coordinator: Coordinator, publisher: AsyncPublisher, relays: list[FakeRelay], tmp_path: Path
) -> None:
    model = write_model(tmp_path / "m.safetensors")
    first = await (await publisher.publish(model, version=4)).wait(timeout_s=60)
    async with AsyncPublisher(str(coordinator.address)) as other:
        again = await (await other.publish(model, version=4)).wait(timeout_s=60)
    assert again == first
    assert [len(relay.objects) for relay in relays] == [1, 1]


async def test_the_same_bytes_again_while_they_are_under_way_wait_for_the_first(
    coordinator: Coordinator, publisher: AsyncPublisher, relays: list[FakeRelay], tmp_path: Path
) -> None:
    relays[1].may_install.clear()
    model = write_model(tmp_path / "m.safetensors")
    first = await publisher.publish(model, version=4)
    await first.wait(fraction=0.5, timeout_s=60)
    async with AsyncPublisher(str(coordinator.address)) as other:
        again = await other.publish(model, version=4)
        while again.status is None:
            await again.changed()
        assert not again.done
        relays[1].may_install.set()
        assert (await again.wait(timeout_s=60)).installed == 2
    assert [len(relay.objects) for relay in relays] == [1, 1]


async def test_other_bytes_under_a_version_are_refused(
    publisher: AsyncPublisher, relays: list[FakeRelay], tmp_path: Path
) -> None:
    await (await publisher.publish(write_model(tmp_path / "a.safetensors"), version=4)).wait(timeout_s=60)
    publication = await publisher.publish(write_model(tmp_path / "b.safetensors", seed=1), version=4)
    with pytest.raises(VersionConflictError, match="newer version"):
        await publication.wait(timeout_s=60)
    with pytest.raises(VersionConflictError):
        publication.result()
    older = await publisher.publish(tmp_path / "b.safetensors", version=3)
    with pytest.raises(VersionConflictError):
        await older.wait(timeout_s=60)


# ---- ends ----------------------------------------------------------------------------------------------------------


async def test_cancel_stops_it_everywhere_and_frees_the_version(
    publisher: AsyncPublisher, relays: list[FakeRelay], tmp_path: Path
) -> None:
    for relay in relays:
        relay.may_fetch.clear()
    publication = await publisher.publish({"w": np.zeros(SIZE)})
    while publication.version is None:
        await publication.changed()
    await publication.cancel()
    with pytest.raises(PublicationCancelledError):
        await publication.wait(timeout_s=60)
    assert spools(tmp_path) == []
    for relay in relays:
        while publication.object_id in relay.targets:
            await relay.changed.wait(relay.changed.count)
        relay.may_fetch.set()
    await publication.cancel()  # again is nothing


async def test_without_workers_it_fails_and_says_so(publisher: AsyncPublisher, tmp_path: Path) -> None:
    publication = await publisher.publish(write_model(tmp_path / "m.safetensors"))
    with pytest.raises(PublicationFailedError, match=r"(?i)worker|relay"):
        await publication.wait(timeout_s=60)


async def test_closing_fails_what_is_under_way(
    coordinator: Coordinator, relays: list[FakeRelay], tmp_path: Path
) -> None:
    for relay in relays:
        relay.may_fetch.clear()
    async with AsyncPublisher(str(coordinator.address)) as publisher:
        publication = await publisher.publish(write_model(tmp_path / "m.safetensors"), version=2)
        waiting = asyncio.create_task(publication.wait())
        while publication.status is None or not publication.status.root:
            await publication.changed()
    with pytest.raises(PublicationFailedError, match="closed before version 2"):
        await waiting
    with pytest.raises(UsageError, match="not open"):
        await publisher.publish(tmp_path / "m.safetensors")


async def test_the_coordinator_may_restart_under_a_publication(settings: CoordinatorSettings, tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.safetensors")
    async with AsyncExitStack() as stack:
        async with open_coordinator(settings) as first:
            address = str(first.address)
            relays = [await stack.enter_async_context(FakeRelay(f"w{i}", address)) for i in range(2)]
            publisher = await stack.enter_async_context(AsyncPublisher(address, base_cache=False))
            for relay in relays:
                relay.may_install.clear()
            publication = await publisher.publish(model, version=9)
            while publication.status is None or publication.status.received_fraction < 1:
                await publication.changed()
        async with open_coordinator(settings.model_copy(update={"listen": address})):
            for relay in relays:
                relay.may_install.set()
            for relay in relays:
                for object_id in list(relay.objects):
                    relay._settle(object_id)
            result = await publication.wait(timeout_s=60)
            assert (result.version, result.installed) == (9, 2)
            second = await (await publisher.publish(model)).wait(timeout_s=60)
            assert second.version == 10
            await stack.aclose()


async def test_the_coordinator_may_lose_its_state_under_a_publication(
    settings: CoordinatorSettings, tmp_path: Path
) -> None:
    """Its origin tells of the object before it is asked for it, and relays may come back after the publisher."""
    model = write_model(tmp_path / "m.safetensors")
    async with AsyncExitStack() as stack:
        async with open_coordinator(settings) as first:
            address = str(first.address)
            publisher = await stack.enter_async_context(AsyncPublisher(address, base_cache=False))
            async with FakeRelay("w0", address) as early:
                early.may_fetch.clear()
                publication = await publisher.publish(model, version=9)
                while publication.status is None or not publication.status.root:
                    await publication.changed()
        empty = settings.model_copy(update={"listen": address, "state": f"sqlite:///{tmp_path}/other.db"})
        async with open_coordinator(empty):
            relay = await stack.enter_async_context(FakeRelay("w1", address))
            result = await publication.wait(timeout_s=60)
            assert (result.version, result.installed, result.targeted) == (9, 1, 1)
            assert (await relay.until_installed(9)).files() == {"m.safetensors": model.read_bytes()}
            await stack.aclose()


async def test_nobody_at_the_address_is_said_on_open() -> None:
    with pytest.raises(CoordinatorUnavailableError, match=r"127\.0\.0\.1:1 "):
        await AsyncPublisher("127.0.0.1:1", open_timeout_s=0.2).open()


# ---- usage ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"version": 0}, "version=0"),
        ({"until": 0.0}, "until=0.0"),
        ({"until": 1.1}, "until=1.1"),
        ({"topology": "ring"}, "'ring'"),
        ({"chains": -1}, "chains=-1"),
        ({"t_train_s": 0.0}, "t_train_s=0.0"),
        ({"t_train_s": float("nan")}, "t_train_s=nan"),
    ],
)
async def test_nonsense_is_refused_before_anything_is_sent(
    publisher: AsyncPublisher, tmp_path: Path, arguments: dict[str, Any], named: str
) -> None:
    with pytest.raises(UsageError, match=named):
        await publisher.publish(write_model(tmp_path / "m.safetensors"), **arguments)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"listen": "0.0.0.0:0"}, "--listen 0.0.0.0:0 is not loopback"),
        ({"coordinator": "example.org:7400"}, "--coordinator example.org:7400 is not loopback"),
        ({"coordinator": "example.org"}, "no port"),
        ({"uplink": "300"}, "'300' is not a rate"),
        ({"uplink": 0.0}, "uplink=0.0"),
        ({"limit_uplink": -1.0}, "limit_uplink=-1.0"),
        ({"streams": 0}, "streams=0"),
        ({"streams": 17}, "streams=17"),
    ],
)
def test_settings_are_checked_when_they_are_given(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        AsyncPublisher(**{"coordinator": "127.0.0.1:7400", **arguments})


async def test_it_has_to_be_open(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="with"):
        await AsyncPublisher("127.0.0.1:7400").publish(tmp_path)


async def test_encoders_end_also_when_nobody_waits_for_the_close(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = await AsyncPublisher(str(coordinator.address), base_cache=False, encoders=1).open()
    publisher._encoders.start()
    assert len(publisher._encoders._all) == 1
    node, leaving = publisher._opened(), asyncio.Event()

    async def leave(_timeout_s: float) -> None:
        leaving.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(node, "leave", leave)
        closing = asyncio.create_task(publisher.close())
        await leaving.wait()
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
    assert not publisher._encoders._all
    await node.close(0.0)
