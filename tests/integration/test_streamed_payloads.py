"""Deltas and compressed snapshots travel while they are made: real daemons, bit for bit whatever happens meanwhile.

| happens while later blocks are still being encoded  | then |
|-----------------------------------------------------|------|
| nothing                                             | workers hold what is made; payload_bytes is the real one |
| not a chunk can leave yet                           | the full object is not hashed, for a moment |
| a relay is killed and starts again with half of it  | it goes on, and lands |
| a worker joins                                      | it gets it, too |
| the coordinator restarts                            | nobody is moved |
| the publisher goes                                  | the version comes to nothing, the one before is served on |
| the files change                                    | likewise, and publish says which |
| it gets larger than is worth it                     | everybody gets the full snapshot |
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import pytest_asyncio
from safetensors.numpy import load_file, save_file

from chappe.cli.localfleet import LocalFleet, RelaySpec
from chappe.core.digest import XXH3_128, Algorithm
from chappe.core.manifest import Manifest
from chappe.errors import ChappeError, SnapshotChangedError
from chappe.hop.ordered import MapOrdered
from chappe.origin import choosing, headstart
from chappe.origin.blocksources import Compared, MakeBlocks, Whole
from chappe.origin.deltas import DeltaFile
from chappe.origin.scan import scan
from chappe.origin.session import OriginSession
from chappe.origin.source import OriginObject
from chappe.payload.container import EncodedBlock
from chappe.payload.plan import DeltaPlan
from chappe.publisher import AsyncPublisher
from tests.integration.fleet_tools import HTTP, assert_same_bytes, metric_reaches, relays, run_cli

pytestmark = pytest.mark.asyncio(loop_scope="function")

MB = 1 << 20
RECEIVED = "relayd_received_bytes_total"
Made = Literal["delta", "compressed"]


def noise(folder: Path, seed: int, blocks: int = 5) -> Path:
    """Of bytes that do not get smaller: a block is a MiB of payload."""
    folder.mkdir(parents=True)
    tensor = np.random.default_rng(seed).integers(0, 256, blocks * MB, dtype=np.uint8)
    save_file({"weight": tensor}, folder / "model.safetensors")
    (folder / "config.json").write_text(f'{{"seed": {seed}}}')
    return folder


def changed(source: Path, folder: Path, seed: int) -> Path:
    """A copy in which four of ten elements are others."""
    folder.mkdir()
    tensor = load_file(source / "model.safetensors")["weight"]
    at = np.random.default_rng(seed).choice(tensor.size, tensor.size * 4 // 10, replace=False)
    tensor[at] += np.random.default_rng(seed).integers(1, 256, at.size, dtype=np.uint8)
    save_file({"weight": tensor}, folder / "model.safetensors")
    (folder / "config.json").write_text(f'{{"seed": {seed}}}')
    return folder


class Held:
    """Blocks from the fourth MiB of tensors on are read when it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gate = threading.Event()
        self.free = 5
        """Blocks that are not held."""
        self.begun = threading.Event()
        """Blocks are being made."""
        for kind in (Compared, Whole):
            monkeypatch.setattr(kind, "opened", self._holding(kind.opened))

    def _holding(self, opened):  # type: ignore[no-untyped-def]
        def late(function: Callable[[object], object], what: object) -> object:
            """A run of blocks, or a leaf of the base when all of them are made."""
            self.begun.set()
            assert not isinstance(what, range) or what.stop <= self.free or self.gate.wait(120)
            return function(what)

        @contextmanager
        def held(source: Compared | Whole) -> Iterator[tuple[DeltaPlan, MakeBlocks]]:
            with opened(source) as (plan, blocks):

                def made(algorithm: Algorithm, mapper: MapOrdered, hands: int = 1) -> Iterator[EncodedBlock]:
                    return blocks(algorithm, lambda function, items: mapper(partial(late, function), items), hands)

                yield plan, made

        return held


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    held = Held(monkeypatch)
    yield held
    held.gate.set()


@pytest_asyncio.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[LocalFleet]:
    async with LocalFleet(tmp_path / "fleet", relays(2), coordinator_flags=HTTP) as running:
        yield running


async def received(fleet: LocalFleet, least: int, *names: str) -> None:
    for name in names:
        await metric_reaches(fleet.workers[name], RECEIVED, least)


async def verified(fleet: LocalFleet, *names: str) -> None:
    for name in names:
        code, out, err = await run_cli("verify", str(fleet.store(name)))
        assert code == 0, (name, out, err)


def compressed_bytes(source: Path, spool: Path, root: str) -> int:
    """What the object has, made once more."""
    snapshot = scan(source)
    file = DeltaFile(Whole(snapshot), Manifest("0" * 32, XXH3_128, MB, snapshot.entries, snapshot.tensors), spool)
    file.encode()
    file.close(root)
    size = file.payload_bytes
    file.discard()
    return size


async def test_workers_hold_what_is_made_and_whatever_happens_go_on(
    fleet: LocalFleet, tmp_path: Path, held: Held
) -> None:
    source = noise(tmp_path / "v1", 1)
    async with AsyncPublisher(fleet.address, base_cache=False) as publisher:
        publication = await publisher.publish(source, payload="compressed")
        await received(fleet, 2 * MB, "w1", "w2")
        await fleet.workers.pop("w1").kill()
        await fleet.start_relay(RelaySpec("w1", HTTP))
        await fleet.start_relay(RelaySpec("late", HTTP))
        await received(fleet, 2 * MB, "late")
        held.gate.set()
        result = await publication.wait(timeout_s=120)
    assert (result.kind, result.installed) == ("full-compressed", 3), result.message
    assert abs(result.payload_bytes - compressed_bytes(source, tmp_path, result.root)) < 100  # but for its object's id
    assert_same_bytes(fleet, source, "w1", "w2", "late")
    await verified(fleet, "w1", "w2", "late")


async def test_the_coordinator_restarts_meanwhile(fleet: LocalFleet, tmp_path: Path, held: Held) -> None:
    source = noise(tmp_path / "v1", 1)
    async with AsyncPublisher(fleet.address, base_cache=False) as publisher:
        publication = await publisher.publish(source, payload="compressed")
        await received(fleet, 2 * MB, "w1", "w2")
        address = fleet.address
        await fleet.coordinator.kill()
        await fleet.start_coordinator(address)
        await fleet.wait_joined("w1", "w2")
        held.gate.set()
        result = await publication.wait(timeout_s=120)
    assert (result.kind, result.installed) == ("full-compressed", 2)
    assert [p.kind for p in result.message.payloads] == ["full-compressed"]
    assert_same_bytes(fleet, source, "w1", "w2")


async def test_a_delta_too_and_then_the_next(fleet: LocalFleet, tmp_path: Path, held: Held) -> None:
    one = noise(tmp_path / "v1", 1)
    two = changed(one, tmp_path / "v2", 2)
    three = changed(two, tmp_path / "v3", 3)
    async with AsyncPublisher(fleet.address, spool=tmp_path) as publisher:
        await (await publisher.publish(one, payload="full")).wait(timeout_s=120)
        publication = await publisher.publish(two)
        await received(fleet, 6 * MB, "w1", "w2")  # the first version, and something of the second one
        held.gate.set()
        result = await publication.wait(timeout_s=120)
        assert (result.kind, result.installed) == ("delta", 2)
        assert_same_bytes(fleet, two, "w1", "w2")
        result = await (await publisher.publish(three, payload="delta")).wait(timeout_s=120)
        assert (result.kind, result.installed) == ("delta", 2)
        assert_same_bytes(fleet, three, "w1", "w2")
    await verified(fleet, "w1", "w2")


@pytest.mark.parametrize("payload", ["delta", "compressed"])
async def test_the_first_chunks_are_made_before_the_full_object_is_hashed(
    fleet: LocalFleet,
    tmp_path: Path,
    held: Held,
    monkeypatch: pytest.MonkeyPatch,
    payload: Made,
) -> None:
    one = noise(tmp_path / "v1", 1)
    two = changed(one, tmp_path / "v2", 2)
    hashed: list[int] = []
    plain = OriginObject.hash

    async def hash_it(source: OriginObject) -> str:
        hashed.append(1)
        return await plain(source)

    monkeypatch.setattr(headstart, "HEAD_START_S", 120)
    monkeypatch.setattr(OriginObject, "hash", hash_it)
    async with AsyncPublisher(fleet.address, spool=tmp_path) as publisher:
        await (await publisher.publish(one, payload="full")).wait(timeout_s=120)
        held.free = 0
        held.begun.clear()
        publication = await publisher.publish(two, payload=payload)
        assert await asyncio.to_thread(held.begun.wait, 120)
        assert len(hashed) == 1
        held.gate.set()
        assert (await publication.wait(timeout_s=120)).installed == 2
    assert len(hashed) == 2
    assert_same_bytes(fleet, two, "w1", "w2")


async def test_less_than_a_page_waits_for_the_root_only(
    fleet: LocalFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(headstart, "HEAD_START_S", 1000)
    one, two = noise(tmp_path / "v1", 1), noise(tmp_path / "v2", 1)
    (two / "config.json").write_text("{}")
    async with AsyncPublisher(fleet.address, spool=tmp_path) as publisher:
        await (await publisher.publish(one, payload="full")).wait(timeout_s=120)
        result = await (await publisher.publish(two, payload="delta")).wait(timeout_s=120)
    assert (result.kind, result.installed) == ("delta", 2)
    assert_same_bytes(fleet, two, "w1", "w2")


async def test_nothing_leaves_for_long_and_the_root_does_not_wait(
    fleet: LocalFleet, tmp_path: Path, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = noise(tmp_path / "v1", 1)
    two = changed(one, tmp_path / "v2", 2)
    rooted = asyncio.Event()
    async with AsyncPublisher(fleet.address, spool=tmp_path) as publisher:
        await (await publisher.publish(one, payload="full")).wait(timeout_s=120)
        announce = OriginSession.announce_root

        def announced(session: OriginSession, object_id: str, root: str) -> None:
            announce(session, object_id, root)
            rooted.set()

        monkeypatch.setattr(OriginSession, "announce_root", announced)
        held.free = 0
        publication = await publisher.publish(two, payload="delta")
        await asyncio.wait_for(rooted.wait(), 120)  # with not one block made
        held.gate.set()
        assert (await publication.wait(timeout_s=120)).installed == 2
    assert_same_bytes(fleet, two, "w1", "w2")


async def test_the_publisher_goes_and_comes_again(fleet: LocalFleet, tmp_path: Path, held: Held) -> None:
    one = noise(tmp_path / "v1", 1)
    two = changed(one, tmp_path / "v2", 2)
    async with AsyncPublisher(fleet.address, spool=tmp_path, base_cache=tmp_path / "base") as publisher:
        await (await publisher.publish(one, payload="full")).wait(timeout_s=120)
        publication = await publisher.publish(two)
        await received(fleet, 6 * MB, "w1", "w2")
        await publication.cancel()
        held.gate.set()
        with pytest.raises(ChappeError):
            await publication.wait(timeout_s=120)
    assert_same_bytes(fleet, one, "w1", "w2")
    async with AsyncPublisher(fleet.address, spool=tmp_path, base_cache=tmp_path / "base") as publisher:
        result = await (await publisher.publish(two)).wait(timeout_s=120)
    assert result.installed == 2
    assert_same_bytes(fleet, two, "w1", "w2")
    await verified(fleet, "w1", "w2")


async def test_the_files_change_meanwhile(fleet: LocalFleet, tmp_path: Path, held: Held) -> None:
    one = noise(tmp_path / "v1", 1)
    two = changed(one, tmp_path / "v2", 2)
    async with AsyncPublisher(fleet.address, spool=tmp_path) as publisher:
        await (await publisher.publish(one, payload="full")).wait(timeout_s=120)
        publication = await publisher.publish(two)
        await received(fleet, 6 * MB, "w1", "w2")
        with (two / "model.safetensors").open("r+b") as file:
            file.seek(4 * MB + 1000)
            file.write(b"another step of the optimizer")
        held.gate.set()
        with pytest.raises(SnapshotChangedError, match=r"model\.safetensors changed"):
            await publication.wait(timeout_s=120)
    assert_same_bytes(fleet, one, "w1", "w2")
    await verified(fleet, "w1", "w2")


async def test_more_than_is_worth_it(fleet: LocalFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sample saw nothing of it."""
    one, two = noise(tmp_path / "v1", 1, 12), noise(tmp_path / "v2", 2, 12)
    monkeypatch.setattr(choosing, "estimate", lambda *_: 0.01)
    async with AsyncPublisher(fleet.address, spool=tmp_path) as publisher:
        await (await publisher.publish(one, payload="full")).wait(timeout_s=120)
        result = await (await publisher.publish(two)).wait(timeout_s=120)
    assert (result.kind, result.installed) == ("full", 2)
    assert_same_bytes(fleet, two, "w1", "w2")
    await verified(fleet, "w1", "w2")
