"""A snapshot as a version of slime's directory form (see `chappe.interop.slime`).

    no base ──▶ the files as they are
    base    ──▶ all but the tensors' bytes the same? ──▶ tensor by tensor: compared, compressed ──▶ shards ──▶ index

The version's directory is made under a name with a dot and renamed when it is whole: a reader sees all or nothing. An
install hook that was killed is run again: what it has written by then is no error, and what it has begun goes.
Memory: one shard, and beside it the compressed changes of a few tensors.
"""

from __future__ import annotations

import fcntl
import filecmp
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from chappe.core.digest import XXH3_128
from chappe.core.manifest import TensorEntry
from chappe.errors import SnapshotError
from chappe.hop.ordered import OrderedMap
from chappe.interop.slime import INDEX, DeltaIndex, encode_change, version_name
from chappe.origin.encoder import table_of
from chappe.origin.reading import Reading
from chappe.origin.scan import Snapshot, SourceFile
from chappe.payload.safetensors import TensorSpec, build_header

SHARD_BYTES = 512 << 20
_COPY_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written. `changed_tensors` is None for a full version."""

    path: Path
    version: int
    written_bytes: int
    snapshot_bytes: int
    changed_tensors: int | None


@contextmanager
def appearing(target: Path, *, again: bool = False) -> Iterator[Path]:
    """A directory to fill; it becomes `target` when the block ends well. Raises SnapshotError if that is there; with
    `again` only if it is not the same."""
    if target.exists() and not again:
        raise _there(target)
    try:
        making, lock = _begun(target)
        try:
            yield making
            if not target.exists():
                making.rename(target)
            elif not _same(making, target):
                raise _there(target)
        finally:
            shutil.rmtree(making, ignore_errors=True)
            os.close(lock)
    except OSError as error:
        raise SnapshotError(f"{target} cannot be written: {error}") from error


def _there(target: Path) -> SnapshotError:
    return SnapshotError(f"{target} is there already: remove it first, or choose another version")


def _begun(target: Path) -> tuple[Path, int]:
    """A directory beside the target, and a lock on it that ends with this process. Raises OSError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(target)
    while True:
        making = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        making.chmod(0o755)  # readers are other users
        try:
            lock = os.open(making, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # another export took it for a leftover before it was locked
        fcntl.flock(lock, fcntl.LOCK_EX)
        if making.exists():
            return making, lock
        os.close(lock)


def _remove_leftovers(target: Path) -> None:
    """Of exports of this version that were killed."""
    for path in target.parent.iterdir():
        if not path.name.startswith(f".{target.name}.") or path.is_symlink() or not path.is_dir():
            continue
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except BlockingIOError:
            pass  # somebody is at it
        finally:
            os.close(lock)


def _same(one: Path, other: Path) -> bool:
    """Both have the same files, byte for byte."""
    names = [{p.relative_to(top) for p in top.rglob("*") if p.is_file()} for top in (one, other)]
    return names[0] == names[1] and all(filecmp.cmp(one / name, other / name, shallow=False) for name in names[0])


def copy_file(source: SourceFile, target: Path) -> None:
    """Raises SnapshotError, OSError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(source.open(), "rb") as opened, target.open("xb") as copy:
        shutil.copyfileobj(opened, copy, _COPY_BYTES)
        copy.flush()
        os.fsync(copy.fileno())


def export_full(snapshot: Snapshot, folder: Path, version: int) -> Exported:
    """Raises SnapshotError, also when a file changes meanwhile."""
    target = folder / version_name(version)
    with appearing(target, again=True) as making:
        for file in sorted(snapshot.files, key=lambda file: file.path == INDEX):  # the index last
            copy_file(file, making / file.path)
        snapshot.unchanged()
    return Exported(target, version, snapshot.snapshot_bytes, snapshot.snapshot_bytes, None)


def export_delta(
    base: Snapshot,
    snapshot: Snapshot,
    folder: Path,
    version: int,
    *,
    encoding: str = "xor",
    checksum: str = "xxh3-128",
    shard_bytes: int = SHARD_BYTES,
    threads: int = 0,
) -> Exported:
    """`snapshot` as a delta to `base`, which readers have as the version before.

    Raises SnapshotError for what the form cannot say: it changes tensors' bytes and nothing else.
    """
    _check_alike(base, snapshot)
    index = DeltaIndex(version, version - 1, encoding, checksum)
    target = folder / version_name(version)
    count = threads or os.cpu_count() or 1
    with appearing(target, again=True) as making, closing(Reading(base)) as old, closing(Reading(snapshot)) as new:

        def change(tensor: TensorEntry) -> tuple[TensorEntry, tuple[bytes, str] | None]:
            size = tensor.end - tensor.begin
            encoded = encode_change(
                encoding,
                checksum,
                size,
                lambda at, length: old.read(tensor.file, tensor.begin + at, length),
                lambda at, length: new.read(tensor.file, tensor.begin + at, length),
            )
            return tensor, encoded

        shards = _Shards(making, shard_bytes)
        with ThreadPoolExecutor(count, "chappe-export") as pool:
            for tensor, encoded in OrderedMap(pool, count)(change, snapshot.tensors):
                if encoded is not None:
                    shards.add(tensor.name, *encoded)
        weight_map = shards.close()
        base.unchanged()
        snapshot.unchanged()
        _write(making / INDEX, [index.pack(weight_map)])
    return Exported(target, version, shards.written_bytes, snapshot.snapshot_bytes, len(weight_map))


class _Shards:
    """Changes, in files of about `shard_bytes`. They get their names at the end: how many there are is in them."""

    def __init__(self, folder: Path, shard_bytes: int) -> None:
        self._folder, self._shard_bytes = folder, shard_bytes
        self._waiting: dict[str, tuple[bytes, str]] = {}
        self._waiting_bytes = 0
        self._names: list[list[str]] = []
        self.written_bytes = 0

    def add(self, name: str, change: bytes, checksum: str) -> None:
        if self._waiting and self._waiting_bytes + len(change) > self._shard_bytes:
            self._flush()
        self._waiting[name] = (change, checksum)
        self._waiting_bytes += len(change)

    def _flush(self) -> None:
        specs = [TensorSpec(name, "U8", (len(change),)) for name, (change, _) in self._waiting.items()]
        header = build_header(specs, {name: checksum for name, (_, checksum) in self._waiting.items()})
        changes = [change for change, _ in self._waiting.values()]
        self.written_bytes += _write(self._folder / f"shard-{len(self._names)}", [header, *changes])
        self._names.append(list(self._waiting))
        self._waiting, self._waiting_bytes = {}, 0

    def close(self) -> dict[str, str]:
        """The weight map."""
        if self._waiting:
            self._flush()
        weight_map: dict[str, str] = {}
        for number, names in enumerate(self._names):
            shard = f"model-{number:05d}-of-{len(self._names):05d}.safetensors"
            (self._folder / f"shard-{number}").rename(self._folder / shard)
            weight_map |= dict.fromkeys(names, shard)
        return weight_map


def _check_alike(base: Snapshot, snapshot: Snapshot) -> None:
    """Raises SnapshotError when anything but tensors' bytes differs."""
    advice = "slime's deltas change tensors only: export a full version (without --base)"
    have, want = table_of(base), table_of(snapshot)
    if have.digest(XXH3_128) != want.digest(XXH3_128):
        raise SnapshotError(f"the base has other files or tensors than the snapshot; {advice}")
    names = [tensor.name for tensor in snapshot.tensors]
    if len(set(names)) != len(names):
        raise SnapshotError(f"a tensor's name is there twice; {advice}")
    with closing(Reading(base)) as old, closing(Reading(snapshot)) as new:
        for region in want.regions:
            if region.dtype:
                continue
            for at in range(region.begin, region.end, _COPY_BYTES):
                length = min(_COPY_BYTES, region.end - at)
                if old.read(region.file, at, length) != new.read(region.file, at, length):
                    path = snapshot.files[region.file].path
                    what = "the header of " if path.endswith(".safetensors") else ""
                    raise SnapshotError(f"{what}{path} differs from the base's; {advice}")


def _write(path: Path, parts: Sequence[bytes]) -> int:
    with path.open("xb") as file:
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
        return file.tell()
