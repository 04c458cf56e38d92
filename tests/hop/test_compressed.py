"""A compressed snapshot lands as the full object, in a store that holds nothing; or not at all, and the full one does.

| happens                                       | then |
|-----------------------------------------------|------|
| all of it is here, in whatever order it came  | the publisher's files, as the full object |
| the process dies in the middle                | the next one lands it |
| a block is altered, cut, or another's         | DeltaError, nothing is left of it; the full object lands |
| no room                                       | tried again when there is |
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chappe.core.events import ObjectState
from chappe.core.manifest import DELTA_FILE
from chappe.errors import DeltaError, DiskFullError
from chappe.hop.store import Store
from chappe.hop.verify import verify_directory
from tests.hop.deltamodels import compressed_model, files_of, full_model, with_bytes
from tests.hop.storekit import FaultyDisk, Model, abandon, receive, tree
from tests.payload.deltakit import safetensors_file


def trained(seed: int) -> dict[str, bytes]:
    """As weights are: the upper byte of a bf16 is much the same everywhere. And zeros, and noise."""
    rng = np.random.default_rng(seed)
    weights = ((0.02 * rng.standard_normal(1 << 20)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    tensors = [
        ("norm", "F32", (64,), np.ones(64, np.float32).tobytes()),
        ("weight", "BF16", (1 << 20,), weights.tobytes()),
        ("zeros", "BF16", (300_000,), bytes(600_000)),
    ]
    noise = [("noise", "U8", (1 << 18,), rng.bytes(1 << 18))]
    return {"config.json": b"{}", "empty.txt": b"", "a.safetensors": safetensors_file(tensors)} | {
        "b/b.safetensors": safetensors_file(noise)
    }


TARGET = full_model(trained(1), f"{2:032x}")
COMPRESSED = compressed_model(TARGET, f"{5:032x}")


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def store(tmp_path: Path, disk: FaultyDisk) -> Store:
    return Store.open(tmp_path / "store", disk)


@pytest.mark.parametrize("backwards", [False, True])
def test_it_lands_as_the_full_object_where_nothing_was(store: Store, backwards: bool) -> None:
    total = COMPRESSED.manifest.chunks_total
    assert COMPRESSED.manifest.payload_bytes < 0.65 * TARGET.manifest.payload_bytes
    receive(store, COMPRESSED, reversed(range(total)) if backwards else None).flush()
    landed = store.land(COMPRESSED.object_id, 1, TARGET.root)
    assert (landed.version, landed.root, landed.object_id) == (1, TARGET.root, TARGET.object_id)
    assert tree(landed.path) == TARGET.files
    assert verify_directory(store.layout.root).ok
    full = store.get(TARGET.object_id)
    assert full is not None
    assert full.holding().state is ObjectState.VERIFIED
    assert [(c, full.read_chunk(c)) for c in range(full.ledger.total or 0)] == TARGET.chunks()
    store.close()


def test_the_next_process_lands_what_one_received(tmp_path: Path, store: Store) -> None:
    held = receive(store, COMPRESSED, range(3))
    assert store.apply_ahead(held)  # some blocks are made
    held.flush()
    store._appliers.close()  # its threads end with the process
    abandon(store)
    again = Store.open(tmp_path / "store")
    held = again.objects()[COMPRESSED.object_id]
    held.recover()
    held.put_chunks(COMPRESSED.chunks())
    assert tree(again.land(COMPRESSED.object_id, 1, TARGET.root).path) == TARGET.files
    again.close()


def damaged() -> dict[str, Model]:
    data = COMPRESSED.files[DELTA_FILE]
    middle = len(data) // 2
    other = full_model(files_of(7), TARGET.object_id)
    return {
        "cut": with_bytes(COMPRESSED, data[:middle]),
        "altered": with_bytes(COMPRESSED, data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]),
        "blank": with_bytes(COMPRESSED, data[:middle] + bytes(1000) + data[middle + 1000 :]),
        "of other files": compressed_model(other, COMPRESSED.object_id),
        "of other files, under this root": compressed_model(other, COMPRESSED.object_id, closing_root=TARGET.root),
    }


@pytest.mark.parametrize("what", sorted(damaged()))
def test_a_bad_one_leaves_nothing_and_the_full_object_lands(store: Store, what: str) -> None:
    receive(store, damaged()[what]).flush()
    with pytest.raises(DeltaError):
        store.land(COMPRESSED.object_id, 1, TARGET.root)
    store.empty_trash()
    assert not list(store.layout.snapshots.iterdir())
    left = sorted(path.name for path in store.layout.object(COMPRESSED.object_id).root.iterdir())
    assert left == ["files", "header", "journal", "pages"]
    receive(store, TARGET)
    assert tree(store.land(TARGET.object_id, 1, TARGET.root).path) == TARGET.files
    store.close()


def test_no_room_and_later_there_is(store: Store, disk: FaultyDisk) -> None:
    receive(store, COMPRESSED).flush()
    disk.fail(["allocate", "create"])
    with pytest.raises(DiskFullError):
        store.land(COMPRESSED.object_id, 1, TARGET.root)
    disk.heal()
    assert tree(store.land(COMPRESSED.object_id, 1, TARGET.root).path) == TARGET.files
    store.close()
