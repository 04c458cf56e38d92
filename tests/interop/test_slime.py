"""slime's directory form, there and back, and as its own reader would read it.

The reader here is written from the published description of the form (see `chappe.interop.slime`) and shares no code
with the project's: whole frames at once, in place, as SGLang's /pull_weights does.
"""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
import zstandard
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from chappe.cli.main import main
from chappe.core.digest import XXH3_128
from chappe.errors import SnapshotError
from chappe.interop.slime import INDEX
from chappe.interop.slime_export import appearing, export_delta, export_full
from chappe.interop.slime_import import import_version, newest_version
from chappe.origin.hashing import hash_snapshot
from chappe.origin.scan import scan


def model(folder: Path, seed: int = 0) -> Path:
    """Two shards, an index, sidecars also in a folder."""
    rng = np.random.default_rng(seed)
    folder.mkdir()
    names = {"model-00001-of-00002.safetensors": "ab", "model-00002-of-00002.safetensors": "cd"}
    for shard, letters in names.items():
        save_file({n: rng.integers(0, 1 << 16, (300, 701), dtype=np.uint16) for n in letters}, folder / shard)
    weight_map = {n: shard for shard, letters in names.items() for n in letters}
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 4 * 420600}, "weight_map": weight_map}))
    (folder / "config.json").write_text("{}")
    (folder / "pooling").mkdir()
    (folder / "pooling/config.json").write_text("{}")
    return folder


def step(source: Path, target: Path, seed: int, letters: str = "ac") -> Path:
    shutil.copytree(source, target)
    rng = np.random.default_rng(seed)
    for path in target.glob("*.safetensors"):
        tensors = load_file(path)
        for name in set(tensors) & set(letters):
            flat = tensors[name].reshape(-1)
            flat[rng.choice(flat.size, 2000, replace=False)] += 1
        save_file(tensors, path)
    return target


def root(path: Path) -> str:
    return hash_snapshot(scan(path), XXH3_128)


def pull(folder: Path, version: int, local: Path) -> None:
    """What the other side does with a delta."""
    directory = folder / f"weight_v{version:06d}"
    meta = json.loads((directory / INDEX).read_text())["metadata"]
    assert (int(meta["version"]), int(meta["base_version"])) == (version, version - 1)
    assert (meta["compression_format"], meta["checksum_format"]) == ("zstd", "xxh3-128")
    places = {}
    for path in local.glob("*.safetensors"):
        blob = path.read_bytes()
        (length,) = struct.unpack("<Q", blob[:8])
        for name, info in json.loads(blob[8 : 8 + length]).items():
            if name != "__metadata__":
                places[name] = (path, 8 + length + info["data_offsets"][0], 8 + length + info["data_offsets"][1])
    for shard in sorted(directory.glob("*.safetensors")):
        with safe_open(shard, "np") as file:
            for name in file.keys():  # noqa: SIM118  not a mapping
                path, begin, end = places[name]
                plain = np.frombuffer(
                    zstandard.ZstdDecompressor().decompress(file.get_tensor(name).tobytes()), np.uint8
                )
                blob = bytearray(path.read_bytes())
                region = np.frombuffer(blob, np.uint8)[begin:end]
                if meta["delta_encoding"] == "xor":
                    region ^= plain
                else:
                    count = int.from_bytes(plain[:4].tobytes(), "little")
                    region[np.frombuffer(plain[4 : 4 + 4 * count], "<u4")] = plain[4 + 4 * count :]
                assert xxhash.xxh3_128(region).hexdigest() == file.metadata()[name]
                path.write_bytes(blob)


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
def test_there_and_back_and_as_the_other_side_reads_it(tmp_path: Path, encoding: str) -> None:
    base = model(tmp_path / "v0")
    versions = tmp_path / "versions"
    local = shutil.copytree(base, tmp_path / "local")
    before = base
    for number in (1, 2, 3):
        after = step(before, tmp_path / f"v{number}", seed=number, letters="ac" if number < 3 else "")
        export_delta(scan(before), scan(after), versions, number, encoding=encoding, shard_bytes=1)
        pull(versions, number, local)
        assert root(local) == root(after)
        before = after
    names = sorted(path.name for path in (versions / "weight_v000002").iterdir())
    assert names == ["model-00000-of-00002.safetensors", "model-00001-of-00002.safetensors", INDEX]
    assert [path.name for path in (versions / "weight_v000003").iterdir()] == [INDEX]  # nothing had changed
    imported = import_version(versions, newest_version(versions), tmp_path / "back", base)
    assert (imported.version, imported.deltas, imported.seed) == (3, (1, 2, 3), base)
    assert root(tmp_path / "back") == root(before)
    assert root(base) == root(model(tmp_path / "again"))  # and nobody wrote to the base


def test_a_full_version_begins_anew(tmp_path: Path) -> None:
    one, other = model(tmp_path / "one"), model(tmp_path / "other", seed=9)
    two = step(other, tmp_path / "two", seed=2)
    versions = tmp_path / "versions"
    export_delta(scan(one), scan(step(one, tmp_path / "v1", seed=1)), versions, 1)
    export_full(scan(other), versions, 2)
    export_delta(scan(other), scan(two), versions, 3, checksum="blake3")
    assert import_version(versions, 3, tmp_path / "back").deltas == (3,)
    assert root(tmp_path / "back") == root(two)
    with pytest.raises(SnapshotError, match="what version 0 is"):
        import_version(versions, 1, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def renamed(folder: Path) -> None:
    tensors = load_file(folder / "model-00001-of-00002.safetensors")
    tensors["b2"] = tensors.pop("b")
    save_file(tensors, folder / "model-00001-of-00002.safetensors")
    weight_map = dict.fromkeys(tensors, "model-00001-of-00002.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "config.json").write_text("[]"), "config.json differs"),
        (lambda folder: (folder / "more.json").write_text("{}"), "other files or tensors"),
        (renamed, "other files or tensors"),
    ],
)
def test_what_a_delta_cannot_say_is_refused(tmp_path: Path, change: Callable[[Path], Any], message: str) -> None:
    base = model(tmp_path / "v0")
    after = step(base, tmp_path / "v1", seed=1)
    change(after)
    with pytest.raises(SnapshotError, match=f"{message}.*without --base"):
        export_delta(scan(base), scan(after), tmp_path / "versions", 1)
    assert not (tmp_path / "versions").exists()


def rewrite_index(directory: Path, **changes: str) -> None:
    fields = json.loads((directory / INDEX).read_text())
    fields["metadata"] |= changes
    (directory / INDEX).write_text(json.dumps(fields))


def outside(directory: Path) -> None:
    fields = json.loads((directory / INDEX).read_text())
    fields["weight_map"] = dict.fromkeys(fields["weight_map"], "../model.safetensors")
    (directory / INDEX).write_text(json.dumps(fields))


def flip(directory: Path) -> None:
    path = directory / "model-00000-of-00001.safetensors"
    blob = bytearray(path.read_bytes())
    blob[len(blob) * 3 // 4] ^= 0x10
    path.write_bytes(blob)


def cut(directory: Path) -> None:
    path = directory / "model-00000-of-00001.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (flip, "tensor '[ac]'"),
        (cut, "tensors end at byte"),
        (outside, "outside of its directory"),
        (lambda d: rewrite_index(d, base_version="000000"), "in the place of 2"),
        (lambda d: rewrite_index(d, delta_encoding="add"), "delta_encoding 'add'"),
        (lambda d: rewrite_index(d, compression_format="lz4"), "compression_format 'lz4'"),
        (lambda d: rewrite_index(d, checksum_format="crc"), "checksum_format 'crc'"),
        (lambda d: rewrite_index(d, version="two"), "not a version"),
        (lambda d: (d / "model-00000-of-00001.safetensors").unlink(), "cannot be read"),
        (lambda d: shutil.rmtree(d), "missing"),
    ],
)
def test_what_is_damaged_is_named_and_leaves_nothing(
    tmp_path: Path, damage: Callable[[Path], Any], message: str
) -> None:
    base = model(tmp_path / "v0")
    one = step(base, tmp_path / "v1", seed=1)
    versions = tmp_path / "versions"
    export_delta(scan(base), scan(one), versions, 1)
    export_delta(scan(one), scan(step(one, tmp_path / "v2", seed=2)), versions, 2)
    damage(versions / "weight_v000002")
    with pytest.raises(SnapshotError, match=message):
        import_version(versions, 2, tmp_path / "back", base)
    assert not [path for path in tmp_path.iterdir() if "back" in path.name]


def test_an_install_hook_that_was_killed_is_run_again(tmp_path: Path) -> None:
    base = model(tmp_path / "v0")
    after = step(base, tmp_path / "v1", seed=1)
    versions = tmp_path / "versions"
    export_full(scan(base), versions, 1)
    (versions / ".weight_v000002.4711").mkdir()  # begun by one that was killed
    (versions / ".weight_v000003.4711").mkdir()
    for _ in range(2):  # killed when it was there
        assert export_full(scan(base), versions, 1).path == versions / "weight_v000001"
        exported = export_delta(scan(base), scan(after), versions, 2)
        assert exported.changed_tensors == 2
        assert sorted(path.name for path in versions.iterdir()) == [
            ".weight_v000003.4711",
            "weight_v000001",
            "weight_v000002",
        ]
    assert (versions / "weight_v000002").stat().st_mode & 0o777 == 0o755
    with pytest.raises(SnapshotError, match="is there already"):
        export_full(scan(after), versions, 1)
    with pytest.raises(SnapshotError, match="is there already"):
        export_delta(scan(after), scan(base), versions, 2)
    assert len(list(versions.iterdir())) == 3


def test_one_export_leaves_another_s_beginnings_alone(tmp_path: Path) -> None:
    with appearing(tmp_path / "v") as making:
        (making / "a").write_text("a")
        with appearing(tmp_path / "v") as other:
            (other / "a").write_text("a")
        assert making.exists()


def test_a_wrong_base_is_found_by_the_checksums(tmp_path: Path) -> None:
    base = model(tmp_path / "v0")
    versions = tmp_path / "versions"
    export_delta(scan(base), scan(step(base, tmp_path / "v1", seed=1)), versions, 1)
    with pytest.raises(SnapshotError, match="begins at other bytes"):
        import_version(versions, 1, tmp_path / "back", model(tmp_path / "other", seed=5))


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = model(tmp_path / "v0")
    (tmp_path / "snapshots").mkdir()
    after = step(base, tmp_path / "snapshots/1", seed=1)
    versions = str(tmp_path / "versions")

    def run(*arguments: str) -> int:
        with pytest.raises(SystemExit) as exited:
            main(arguments)
        return int(exited.value.code or 0)

    assert run("export", str(after), versions, "--format", "slime", "--base", str(base), "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["version"], shown["kind"], shown["changed_tensors"]) == (1, "delta", 2)
    assert shown["written_bytes"] < 0.2 * shown["snapshot_bytes"]
    back = str(tmp_path / "back")
    assert run("import", versions, back, "--format", "slime", "--base", str(base), "--json") == 0
    assert json.loads(capsys.readouterr().out)["deltas"] == [1]
    assert root(Path(back)) == root(after)
    assert run("export", str(after), versions, "--format", "slime") == 1
    assert "is there already" in capsys.readouterr().err
    assert run("export", str(base), versions, "--format", "slime") == 2
    assert "--version is needed" in capsys.readouterr().err
