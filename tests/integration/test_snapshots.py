"""What may be published and what a rollout host then has: tensors of torch and numpy, model directories, odd files."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import pytest_asyncio
from safetensors.numpy import save_file

from chappe.cli.localfleet import LocalFleet
from chappe.errors import SnapshotError
from chappe.publisher import AsyncPublisher
from chappe.subscriber import AsyncSubscriber
from tests.integration.fleet_tools import assert_same_bytes, chappe, mute_relays, run_cli

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalFleet]:
    async with LocalFleet(tmp_path_factory.mktemp("fleet"), mute_relays(2)) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def publisher(fleet: LocalFleet, tmp_path: Path) -> AsyncIterator[AsyncPublisher]:
    async with AsyncPublisher(fleet.address, spool=tmp_path) as opened:
        yield opened


async def arrived(fleet: LocalFleet, publisher: AsyncPublisher, source: Any) -> list[Any]:
    """Publish, and what each rollout host's engine finds."""
    result = await (await publisher.publish(source)).wait(timeout_s=60)
    assert result.installed == 2
    subscribers = [AsyncSubscriber(fleet.store(name)) for name in fleet.workers]
    snapshots = [await s.wait(newer_than=result.version - 1, timeout_s=60) for s in subscribers]
    assert [s.root for s in snapshots] == [result.root] * 2
    return snapshots


async def test_numpy_tensors_arrive_bit_for_bit(fleet: LocalFleet, publisher: AsyncPublisher) -> None:
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 1 << 16, (300, 64), dtype=np.uint16)  # every pattern, NaNs with payloads too
    tensors: dict[str, np.ndarray[Any, Any]] = {
        "embed.weight": bits.view(ml_dtypes.bfloat16),
        "transposed": rng.standard_normal((17, 5), dtype=np.float32).T,
        "fp8": rng.integers(0, 256, 1000, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn),
        "steps": np.array(12, dtype=np.int64),
        "none": np.empty((0, 3), dtype=np.float16),
        "mask": rng.integers(0, 2, 77).astype(np.bool_),
    }
    for snapshot in await arrived(fleet, publisher, tensors):
        loaded = snapshot.load()
        assert loaded.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert (loaded[name].dtype, loaded[name].shape) == (tensor.dtype, tensor.shape), name
            assert loaded[name].tobytes() == tensor.tobytes(), name


async def test_torch_tensors_arrive_bit_for_bit(fleet: LocalFleet, publisher: AsyncPublisher) -> None:
    """And what the trainer does to them after `publish` has returned does not."""
    torch = pytest.importorskip("torch")
    bits = torch.randint(-(1 << 15), 1 << 15, (256, 64), generator=torch.Generator().manual_seed(1))
    weight = bits.to(torch.int16).view(torch.bfloat16)
    before = weight.clone()
    publication = await publisher.publish({"layer.weight": weight, "tied.weight": weight})
    weight.zero_()
    result = await publication.wait(timeout_s=60)
    for name in fleet.workers:
        snapshot = await AsyncSubscriber(fleet.store(name)).wait(newer_than=result.version - 1, timeout_s=60)
        tensors = snapshot.torch()
        assert tensors.keys() == {"layer.weight", "tied.weight"}
        for tensor in tensors.values():
            assert tensor.dtype is torch.bfloat16
            assert torch.equal(tensor.view(torch.int16), before.view(torch.int16))


def sharded_model(directory: Path) -> Path:
    """Two shards with an index, a shard without tensors, and sidecars: empty, with names from elsewhere, nested."""
    directory.mkdir()
    shards: dict[str, dict[str, np.ndarray[Any, Any]]] = {
        "model-00001-of-00003.safetensors": {"a": np.arange(100_000, dtype=np.float32)},
        "model-00002-of-00003.safetensors": {"b": np.ones((3, 1000), np.float16), "c": np.zeros(0, np.int8)},
        "model-00003-of-00003.safetensors": {},
    }
    weight_map: dict[str, str] = {}
    for shard, tensors in shards.items():
        save_file(tensors, directory / shard)
        weight_map |= dict.fromkeys(tensors, shard)
    index = {"metadata": {"total_size": 406_000}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    (directory / "config.json").write_text("{}")
    (directory / "empty.txt").touch()
    (directory / "Müller - 模型 🗼.txt").write_text("télégraphe")
    (directory / "tokenizer" / "über").mkdir(parents=True)
    (directory / "tokenizer" / "über" / "vocab").write_bytes(bytes(range(256)))
    return directory


async def test_a_sharded_directory_with_odd_files(fleet: LocalFleet, publisher: AsyncPublisher, tmp_path: Path) -> None:
    source = sharded_model(tmp_path / "model")
    for snapshot in await arrived(fleet, publisher, source):
        loaded = snapshot.load()
        assert loaded.keys() == {"a", "b", "c"}
        assert np.array_equal(loaded["a"], np.arange(100_000, dtype=np.float32))
    assert_same_bytes(fleet, source, *fleet.workers)
    code, out, _ = await run_cli("verify", str(fleet.store("w1")), "--json")
    assert (code, json.loads(out)["ok"]) == (0, True)


async def test_a_single_file(fleet: LocalFleet, publisher: AsyncPublisher, tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    source = tmp_path / "alone" / "policy.safetensors"
    save_file({"a": np.arange(5)}, source)
    for snapshot in await arrived(fleet, publisher, source):
        assert [path.name for path in snapshot.path.iterdir()] == ["policy.safetensors"]
        assert list(snapshot.load()) == ["a"]
    assert_same_bytes(fleet, source.parent, *fleet.workers)


async def test_what_is_no_snapshot_is_refused_before_anything_is_sent(fleet: LocalFleet, tmp_path: Path) -> None:
    source = sharded_model(tmp_path / "model")
    (source / "model-00001-of-00003.safetensors").unlink()
    code, out, err = await chappe(fleet, "publish", str(source), "--json")
    assert (code, out) == (1, "")
    assert "model-00001-of-00003.safetensors" in err
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes((100).to_bytes(8, "little") + b"{}")
    async with AsyncPublisher(fleet.address) as publisher:
        with pytest.raises(SnapshotError, match=r"broken\.safetensors"):
            await publisher.publish(broken)
