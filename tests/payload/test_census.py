"""What a delta says of a step: tensors that have a base, and nothing else, whatever shares a block with them."""

from __future__ import annotations

import numpy as np
from deltakit import MemorySnapshot, make_delta, safetensors_file

from chappe.core.digest import XXH3_128
from chappe.payload.census import changed_by_region
from chappe.payload.container import Packer
from chappe.payload.delta import difference_of, encode_delta
from chappe.payload.fold import Delta, fold
from chappe.payload.plan import DeltaPlan

RNG = np.random.default_rng(5)
OLD, NEW = RNG.bytes(8000), RNG.bytes(2000)
STEPPED = bytes(b ^ (i % 200 == 0) for i, b in enumerate(OLD))  # 40 of 4000 elements, if they have two bytes


def snapshot(weights: bytes, config: bytes, *more: tuple[str, str, tuple[int, ...], bytes]) -> MemorySnapshot:
    tensors = [*more, ("w", "BF16", (4000,), weights)]
    return MemorySnapshot.of({"config.json": config, "model.safetensors": safetensors_file(tensors)})


def packed(base: MemorySnapshot, target: MemorySnapshot) -> Packer:
    packer = Packer(XXH3_128)
    plan = DeltaPlan.between(base.table, target.table)
    for _ in packer.pack(encode_delta(plan, XXH3_128, base.read, target.read)):
        pass
    return packer


def test_a_sidecar_is_no_step() -> None:
    packer = packed(snapshot(OLD, b"{}"), snapshot(OLD, b'{"step": 12}'))
    assert (packer.changed, packer.changed_bytes) == (0, 0)


def test_a_new_tensor_has_not_changed_though_it_shares_a_block() -> None:
    plain = packed(snapshot(OLD, b"{}"), snapshot(STEPPED, b"{}"))
    assert plain.changed == 40
    grown = packed(snapshot(OLD, b"{}"), snapshot(STEPPED, b"{ }", ("extra", "BF16", (1000,), NEW)))
    assert grown.changed == 40
    assert 0 < grown.changed_bytes < grown.payload_bytes / 10
    assert 40 <= plain.changed_bytes < plain.payload_bytes


def test_folded_deltas_say_what_a_direct_one_does() -> None:
    a, b = snapshot(OLD, b"{}"), snapshot(STEPPED, b"{ }", ("extra", "BF16", (1000,), NEW))
    c = snapshot(OLD[::-1], b"{  }", ("extra", "BF16", (1000,), NEW[::-1]))
    first, second = (Delta.of(plan, XXH3_128, chunks) for plan, chunks in (make_delta(a, b), make_delta(b, c)))
    packer = Packer(XXH3_128)
    for _ in packer.pack(fold(first, second)):
        pass
    direct = packed(a, c)
    assert (packer.changed, packer.changed_bytes) == (direct.changed, direct.changed_bytes)
    assert 3900 < packer.changed <= 4000  # not those of the new tensor


def test_a_snapshot_without_a_base_has_changed_nothing() -> None:
    target = snapshot(OLD, b"{}")
    packer = Packer(XXH3_128)
    for _ in packer.pack(encode_delta(DeltaPlan.whole(target.table), XXH3_128, target.read, target.read)):
        pass
    assert (packer.changed, packer.changed_bytes) == (0, 0)


def test_regions_add_up_to_the_difference() -> None:
    base, target = snapshot(OLD, b"{}"), snapshot(STEPPED, b"{ }", ("extra", "BF16", (1000,), NEW))
    plan = DeltaPlan.between(base.table, target.table)
    for ordinal in range(plan.blocks_total):
        difference = difference_of(plan, ordinal, base.read, target.read)
        assert sum(changed_by_region(plan, plan.block(ordinal), difference).values()) == difference.changed
