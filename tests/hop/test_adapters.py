"""An adapter lands only where its base has; whatever its binding is, nothing but that is decided by it."""

from __future__ import annotations

from pathlib import Path

import pytest

from chappe.core.digest import XXH3_128
from chappe.errors import SnapshotError, UsageError
from chappe.hop.adapters import BaseHolds, binding_of, bound_in, landed_roots, refusal
from chappe.hop.spared import hold
from chappe.hop.store import Store
from chappe.origin.adapters import Bindings, base_root_of, bound_to
from chappe.origin.hashing import hash_snapshot
from chappe.origin.scan import scan
from chappe.payload.adapter import BINDING_BYTES_MAX, BINDING_FILE, pack_binding, parse_binding
from chappe.snapshot import Snapshot
from tests.hop.deltamodels import compressed_model, files_of, full_model
from tests.hop.storekit import Model, receive
from tests.payload.deltakit import safetensors_file

BASE = full_model(files_of(1), f"{1:032x}")
OTHER = full_model(files_of(2), f"{2:032x}")
WEIGHTS = safetensors_file([("lora_A", "F32", (4, 2), bytes(32))])


def adapter(binding: bytes | None) -> Model:
    files = {"adapter_config.json": b"{}", "adapter_model.safetensors": WEIGHTS}
    return full_model(files if binding is None else {BINDING_FILE: binding} | files, f"{9:032x}")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A store in which BASE has landed, and which a relay has open."""
    store = Store.open(tmp_path / "base")
    receive(store, BASE)
    store.land(BASE.object_id, 7, BASE.root)
    receive(store, OTHER, range(3))  # on its way, not here
    return tmp_path / "base"


def refused(tmp_path: Path, model: Model, base_store: Path | None) -> str:
    store = Store.open(tmp_path / f"adapters-{len(list(tmp_path.iterdir()))}")
    try:
        return refusal(receive(store, model), BaseHolds(base_store), base_store)
    finally:
        store.close()


def test_what_has_landed_is_found_without_the_store_s_lock(base: Path, tmp_path: Path) -> None:
    assert landed_roots(base) == {BASE.root: 7}
    assert landed_roots(tmp_path / "nothing here") == {}


def test_it_lands_beside_its_base_only(base: Path, tmp_path: Path) -> None:
    bound = adapter(pack_binding(BASE.root))
    assert refused(tmp_path, bound, base) == ""
    assert refused(tmp_path, bound, tmp_path / "none").endswith(f"which has not landed in {tmp_path / 'none'}")
    assert "no base (--base-store)" in refused(tmp_path, bound, None)
    assert f"an adapter of {OTHER.root}, which" in refused(tmp_path, adapter(pack_binding(OTHER.root)), base)


def test_the_base_of_an_adapter_stays_until_the_adapter_goes(tmp_path: Path) -> None:
    with Store.open(tmp_path / "base") as store:
        holds = BaseHolds(tmp_path / "base")
        assert not holds.take(BASE.root)
        for version, model in enumerate((BASE, OTHER, full_model(files_of(3), f"{3:032x}")), start=1):
            receive(store, model)
            store.land(model.object_id, version, model.root)
            if version == 1:
                assert holds.take(BASE.root)
                assert holds.take(BASE.root)
        assert store.retain((), ()).versions == ()
        store.empty_trash()
        assert landed_roots(tmp_path / "base")[BASE.root] == 1
        holds.keep_only({BASE.root, OTHER.root})
        assert store.retain((), ()).versions == ()
        holds.keep_only(())
        assert store.retain((), ()).versions == (1,)
        assert not holds.take(BASE.root)
        assert hold(tmp_path / "base", 1) is None
    assert BaseHolds(None).take(BASE.root) is False


def test_a_binding_of_what_has_landed(tmp_path: Path) -> None:
    assert bound_in(tmp_path) is None
    (tmp_path / BINDING_FILE).write_bytes(pack_binding(BASE.root))
    assert bound_in(tmp_path) == BASE.root
    (tmp_path / BINDING_FILE).write_bytes(b"{}")
    assert bound_in(tmp_path) is None


def test_what_is_no_adapter_is_not_looked_at(base: Path, tmp_path: Path) -> None:
    for store in (base, None):
        assert refused(tmp_path, adapter(None), store) == ""
    opened = Store.open(tmp_path / "compressed")
    assert binding_of(receive(opened, compressed_model(BASE, f"{5:032x}"))) is None
    opened.close()


@pytest.mark.parametrize(
    "binding",
    [
        b"",
        b"{}",
        b"[]",
        b'{"base_root": 3}',
        b'{"base_root": "../../etc"}',
        b"\xff",
        pack_binding("x:" + "0" * 32) + b" " * BINDING_BYTES_MAX,
    ],
)
def test_a_binding_that_cannot_be_read_is_refused(base: Path, tmp_path: Path, binding: bytes) -> None:
    assert "whose binding cannot be read" in refused(tmp_path, adapter(binding), base)
    with pytest.raises(SnapshotError):
        parse_binding(binding)


def test_the_publisher_binds_to_a_root_or_to_what_has_landed(base: Path, tmp_path: Path) -> None:
    assert base_root_of(BASE.root) == BASE.root
    for path in (base, base / "current", base / "snapshots/7"):
        assert base_root_of(str(path)) == BASE.root
    for wrong in ("12", "no/where", str(tmp_path), "xxh3_128:zz"):
        with pytest.raises(UsageError, match="adapter_of"):
            base_root_of(wrong)


def test_a_bound_snapshot_is_its_files_and_the_binding(tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(WEIGHTS)
    (folder / "README.md").write_text("mine")
    (folder / "z.json").write_text("{}")
    bindings = Bindings(tmp_path)
    bound = bindings.bind(scan(folder), BASE.root)
    assert [file.path for file in bound.files] == ["README.md", BINDING_FILE, "z.json", "adapter_model.safetensors"]
    assert [bound.files[tensor.file].path for tensor in bound.tensors] == ["adapter_model.safetensors"]
    root = hash_snapshot(bound, XXH3_128)
    assert root != hash_snapshot(bindings.bind(scan(folder), OTHER.root), XXH3_128)
    (folder / BINDING_FILE).write_bytes(pack_binding(BASE.root))  # as it lands
    landed = scan(folder)
    assert hash_snapshot(landed, XXH3_128) == root
    assert bound_to(landed) == Snapshot(1, folder, root).adapter_of == BASE.root
    assert bindings.bind(landed, BASE.root) is landed
    with pytest.raises(UsageError, match="is an adapter of"):
        bindings.bind(landed, OTHER.root)
    bindings.close()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("chappe-spool-")]
