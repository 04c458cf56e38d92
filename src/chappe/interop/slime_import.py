"""A version of slime's directory form as a snapshot of its own, to be published or loaded.

    newest full version up to the one wanted, or the base model ──copied──▶ deltas, one after another ──▶ target

Nothing that is there is written to: the target is made beside, under a name with a dot, and renamed when every checksum
has been right. What is read may be of anybody: names, lengths and offsets are checked before they are used.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from chappe.core.manifest import TensorEntry
from chappe.errors import SafetensorsError, SnapshotChangedError, SnapshotError
from chappe.interop.slime import INDEX, DeltaIndex, apply_change, parse_delta_index, version_name, version_of
from chappe.interop.slime_export import appearing, copy_file
from chappe.origin.scan import scan
from chappe.payload.layout import INDEX_BYTES_MAX
from chappe.payload.safetensors import LENGTH_BYTES, SafetensorsHeader, TensorInfo, header_span, parse_header


@dataclass(frozen=True, slots=True)
class Imported:
    """`seed` is where it began, `deltas` what was applied onto that."""

    path: Path
    version: int
    seed: Path
    deltas: tuple[int, ...]
    snapshot_bytes: int


def newest_version(folder: Path) -> int:
    """Raises SnapshotError when there is none."""
    try:
        versions = [version_of(entry.name) for entry in folder.iterdir()]
    except OSError as error:
        raise SnapshotError(f"{folder} cannot be read: {error.strerror}") from error
    found = [version for version in versions if version is not None]
    if not found:
        raise SnapshotError(f"{folder} has no directory {version_name(1)} or the like")
    return max(found)


def import_version(folder: Path, version: int, target: Path, base: Path | None = None) -> Imported:
    """Make `target`, the snapshot that `version` is. `base` is version 0, where no full version is there.

    Raises SnapshotError: what is missing, damaged, or does not follow on what is before it.
    """
    chain: list[int] = []
    while version - len(chain) > 0 and _delta_of(folder, version - len(chain)) is not None:
        chain.append(version - len(chain))
    first = version - len(chain)
    seed = folder / version_name(first) if first else base
    if seed is None:
        raise SnapshotError(f"{folder} has deltas from version 1 on, and nothing full: say what version 0 is (--base)")
    with appearing(target) as making:
        source = scan(seed)
        for file in source.files:
            copy_file(file, making / file.path)
        source.unchanged()
        for number in reversed(chain):
            _apply(folder / version_name(number), number, making)
        snapshot_bytes = scan(making).snapshot_bytes
    return Imported(target, version, seed, tuple(reversed(chain)), snapshot_bytes)


def _delta_of(folder: Path, version: int) -> tuple[DeltaIndex, dict[str, str]] | None:
    directory = folder / version_name(version)
    if not directory.is_dir():
        raise SnapshotError(f"{directory} is missing")
    try:
        with (directory / INDEX).open("rb") as file:
            text = file.read(INDEX_BYTES_MAX + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SnapshotError(f"{directory / INDEX} cannot be read: {error.strerror}") from error
    if len(text) > INDEX_BYTES_MAX:
        raise SnapshotError(f"{directory / INDEX} has more than {INDEX_BYTES_MAX} bytes")
    try:
        found = parse_delta_index(text)
    except SnapshotError as error:
        raise SnapshotError(f"{directory / INDEX}: {error}") from None
    if found is not None and (found[0].version, found[0].base_version) != (version, version - 1):
        what = f"version {found[0].version} from {found[0].base_version}"
        raise SnapshotError(f"{directory / INDEX}: {what}, in the place of {version}")
    return found


def _apply(directory: Path, version: int, making: Path) -> None:
    found = _delta_of(directory.parent, version)
    if found is None:
        raise SnapshotChangedError(f"{directory} changed while it was read")
    index, weight_map = found
    have = scan(making)
    places = {tensor.name: tensor for tensor in have.tensors}
    seen: set[str] = set()
    for shard in sorted(set(weight_map.values())):
        with _open(directory, shard) as file:
            header = _header(file, f"{directory / shard}")
            for change in header.tensors:
                place, what = places.get(change.name), f"{directory / shard}: tensor {change.name[:120]!r}"
                if place is None or change.name in seen:
                    raise SnapshotError(f"{what} is not in the version before, or changed twice")
                want, path = header.metadata.get(change.name, ""), have.files[place.file].location
                try:
                    _change(index, file, change, want, path, place)
                except SnapshotError as error:
                    raise SnapshotError(f"{what}: {error}") from None
                seen.add(change.name)
    if seen != set(weight_map):
        raise SnapshotError(f"{directory / INDEX} names tensors that its shards do not have, or the reverse")


def _open(directory: Path, shard: str) -> BinaryIO:
    path = directory / shard
    if Path(shard).name != shard:
        raise SnapshotError(f"{directory / INDEX} names a shard outside of its directory: {shard[:120]!r}")
    try:
        return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")
    except OSError as error:
        raise SnapshotError(f"{path} cannot be read: {error.strerror}") from error


def _header(file: BinaryIO, what: str) -> SafetensorsHeader:
    size = os.fstat(file.fileno()).st_size
    try:
        span = header_span(file.read(LENGTH_BYTES), size)
        file.seek(0)
        return parse_header(file.read(span), size)
    except SafetensorsError as error:
        raise SnapshotError(f"{what}: {error}") from None


def _change(index: DeltaIndex, file: BinaryIO, change: TensorInfo, want: str, path: Path, place: TensorEntry) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        file.seek(change.begin)
        apply_change(
            index,
            file.read(change.end - change.begin),
            want,
            place.end - place.begin,
            lambda at, length: os.pread(descriptor, length, place.begin + at),
            lambda at, data: _write_at(descriptor, data, place.begin + at),
        )
    finally:
        os.close(descriptor)


def _write_at(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written
