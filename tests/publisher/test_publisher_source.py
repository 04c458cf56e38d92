"""What is published is no snapshot, changes under way, or was announced by a publisher that went away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from relay_fake import FakeRelay

from chappe import AsyncPublisher
from chappe.coordinator.daemon import Coordinator
from chappe.errors import (
    SafetensorsError,
    SnapshotChangedError,
    SnapshotError,
    UsageError,
    VersionConflictError,
)
from chappe.origin.scan import Snapshot
from tests.publisher.publisherkit import spools, write_model


async def test_what_is_no_snapshot_is_refused_by_publish_itself(publisher: AsyncPublisher, tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="missing"):
        await publisher.publish(tmp_path / "missing")
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"not it")
    with pytest.raises(SafetensorsError, match="broken"):
        await publisher.publish(broken)
    write_model(tmp_path / "model" / "m.safetensors")
    (tmp_path / "model" / "ca-key.pem").write_text("-----BEGIN PRIVATE KEY-----")
    with pytest.raises(SnapshotError, match=r"ca-key\.pem is not published"):
        await publisher.publish(tmp_path / "model")
    with pytest.raises(SnapshotError, match="'c'"):
        await publisher.publish({"c": np.zeros(3, dtype=np.complex128)})
    with pytest.raises(UsageError, match=r"list is neither a path nor .* module's state_dict\(\)"):
        await publisher.publish([np.zeros(3)])  # type: ignore[arg-type]
    assert spools(tmp_path) == []


async def test_a_file_that_changes_fails_the_publication_and_burns_nothing(
    publisher: AsyncPublisher, relays: list[FakeRelay], tmp_path: Path
) -> None:
    model = write_model(tmp_path / "m.safetensors")
    publication = await publisher.publish(model, version=5)
    write_model(model, seed=1)
    with pytest.raises(SnapshotChangedError, match=r"m\.safetensors"):
        await publication.wait(timeout_s=60)
    assert all(not relay.installed for relay in relays)
    result = await (await publisher.publish(model, version=5)).wait(timeout_s=60)
    assert result.version == 5
    assert (await relays[0].until_installed(5)).files() == {"m.safetensors": model.read_bytes()}


async def test_a_file_that_changes_after_its_root_was_announced_fails_it_too(
    publisher: AsyncPublisher, relays: list[FakeRelay], tmp_path: Path
) -> None:
    for relay in relays:
        relay.may_fetch.clear()
    model = write_model(tmp_path / "m.safetensors")
    publication = await publisher.publish(model)
    while publication.status is None or not publication.status.root:
        await publication.changed()
    write_model(model, seed=1)
    for relay in relays:
        relay.may_fetch.set()
    with pytest.raises(SnapshotChangedError, match=r"m\.safetensors"):
        await publication.wait(timeout_s=60)


async def test_an_object_that_cannot_be_made_gives_its_version_back(
    publisher: AsyncPublisher, relays: list[FakeRelay], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_large(*args: Any, **kwargs: Any) -> None:
        raise SnapshotError("the tensor table is too large to travel")

    model = write_model(tmp_path / "m.safetensors")
    with monkeypatch.context() as patched:
        patched.setattr("chappe.origin.job.OriginObject", too_large)
        publication = await publisher.publish(model, version=7)
        with pytest.raises(SnapshotError, match="too large"):
            await publication.wait(timeout_s=60)
    assert (await (await publisher.publish(model, version=7)).wait(timeout_s=60)).version == 7


async def announced_and_left(coordinator: Coordinator, relays: list[FakeRelay], model: Path, version: int) -> str:
    """A publisher whose version is burned goes away before any relay has a byte of it; the object's id."""
    for relay in relays:
        relay.may_fetch.clear()
    async with AsyncPublisher(str(coordinator.address)) as publisher:
        publication = await publisher.publish(model, version=version)
        while publication.status is None or not publication.status.root:
            await publication.changed()
    for relay in relays:
        relay.may_fetch.set()
    return publication.object_id


async def test_another_publisher_goes_on_with_a_version_that_was_announced(
    coordinator: Coordinator, relays: list[FakeRelay], tmp_path: Path
) -> None:
    model = write_model(tmp_path / "m.safetensors")
    object_id = await announced_and_left(coordinator, relays, model, 3)
    async with AsyncPublisher(str(coordinator.address)) as publisher:
        publication = await publisher.publish(model, version=3)
        result = await publication.wait(timeout_s=60)
        assert (result.version, result.installed_fraction) == (3, 1.0)
        assert publication.object_id == object_id
        for relay in relays:
            assert relay.installed == {3: object_id}
            assert relay.objects[object_id].files() == {"m.safetensors": model.read_bytes()}
        newer = write_model(tmp_path / "m.safetensors", seed=1)
        assert (await (await publisher.publish(newer, version=4)).wait(timeout_s=60)).version == 4


async def test_other_bytes_do_not_go_on_with_it(
    coordinator: Coordinator, relays: list[FakeRelay], tmp_path: Path
) -> None:
    model = write_model(tmp_path / "m.safetensors")
    object_id = await announced_and_left(coordinator, relays, model, 3)
    other = write_model(tmp_path / "other" / "m.safetensors", seed=1)
    async with AsyncPublisher(str(coordinator.address)) as publisher:
        with pytest.raises(VersionConflictError, match="newer version"):
            await (await publisher.publish(other, version=3)).wait(timeout_s=60)
    for relay in relays:
        assert object_id not in relay.objects or not relay.objects[object_id].ledger.held
    async with AsyncPublisher(str(coordinator.address)) as publisher:
        assert (await (await publisher.publish(model, version=3)).wait(timeout_s=60)).installed == 2


async def test_a_file_that_changes_while_it_is_compared_ends_nothing_but_this_attempt(
    coordinator: Coordinator, relays: list[FakeRelay], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_model(tmp_path / "m.safetensors")
    await announced_and_left(coordinator, relays, model, 3)

    def changed(self: Snapshot) -> None:
        raise SnapshotChangedError("m.safetensors changed while it was being published")

    with monkeypatch.context() as patched:
        patched.setattr(Snapshot, "unchanged", changed)
        async with AsyncPublisher(str(coordinator.address)) as publisher:
            with pytest.raises(SnapshotChangedError):
                await (await publisher.publish(model, version=3)).wait(timeout_s=60)
    async with AsyncPublisher(str(coordinator.address)) as publisher:
        assert (await (await publisher.publish(model, version=3)).wait(timeout_s=60)).installed == 2
