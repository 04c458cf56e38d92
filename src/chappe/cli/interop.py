"""`chappe export` and `chappe import`: snapshots as directories of other systems, and back."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from chappe.errors import UsageError
from chappe.interop.slime_export import Exported, export_delta, export_full
from chappe.interop.slime_import import import_version, newest_version
from chappe.origin.scan import scan
from chappe.units import format_size

Format = Literal["slime"]


def export(
    snapshot: Annotated[Path, Parameter(show_env_var=False)],
    folder: Annotated[Path, Parameter(show_env_var=False)],
    /,
    *,
    format: Format,  # noqa: A002, ARG001  the option's name; there is one
    version: int | None = None,
    base: Path | None = None,
    encoding: Literal["xor", "overwrite"] = "xor",
    checksum: Literal["xxh3-128", "blake3", "adler32"] = "xxh3-128",
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Write a snapshot as a version in the directory form of another system.

    Parameters
    ----------
    snapshot
        One .safetensors file or a model directory; of a relay's store `current` or `snapshots/<version>`.
    folder
        Where the versions are. `weight_v000012` is made in it, and is there whole or not at all.
    format
        slime: what slime and miles write and SGLang's /pull_weights reads.
    version
        Its number. A landed snapshot's own when not given.
    base
        The snapshot of the version before: write a delta to it. Without, a full version.
    encoding
        Of a delta: xor is smaller, overwrite may be applied twice.
    checksum
        Of a delta: of each changed tensor.
    json
        Print one JSON object.
    """
    number = _version_of(snapshot) if version is None else version
    if number < 1:
        raise UsageError(f"--version {number}: versions begin at 1; version 0 is the engine's own model")
    source = scan(snapshot)
    if base is None:
        exported = export_full(source, folder, number)
    else:
        exported = export_delta(scan(base), source, folder, number, encoding=encoding, checksum=checksum)
    print(jsonlib.dumps(_exported_json(exported)) if json else _exported_text(exported))
    return 0


def _version_of(snapshot: Path) -> int:
    name = snapshot.resolve().name
    if not name.isascii() or not name.isdecimal():
        raise UsageError(f"--version is needed: {snapshot} does not say which version it is")
    return int(name)


def _exported_json(exported: Exported) -> dict[str, object]:
    return {
        "path": str(exported.path),
        "version": exported.version,
        "kind": "full" if exported.changed_tensors is None else "delta",
        "changed_tensors": exported.changed_tensors,
        "written_bytes": exported.written_bytes,
        "snapshot_bytes": exported.snapshot_bytes,
    }


def _exported_text(exported: Exported) -> str:
    if exported.changed_tensors is None:
        return f"{exported.path}: full, {format_size(exported.written_bytes)}"
    return (
        f"{exported.path}: {exported.changed_tensors} changed tensors, {format_size(exported.written_bytes)} "
        f"of {format_size(exported.snapshot_bytes)}"
    )


def import_(
    folder: Annotated[Path, Parameter(show_env_var=False)],
    target: Annotated[Path, Parameter(show_env_var=False)],
    /,
    *,
    format: Format,  # noqa: A002, ARG001  the option's name; there is one
    version: int | None = None,
    base: Path | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Make a snapshot of a version in the directory form of another system. `chappe publish` takes it from there.

    Parameters
    ----------
    folder
        Where the versions are: `weight_v000001` and so on.
    target
        The directory to make. It is there whole, every checksum proven, or not at all.
    format
        slime: what slime and miles write and SGLang's /pull_weights reads.
    version
        Its number; the newest when not given.
    base
        The model that is version 0: needed when there is no full version.
    json
        Print one JSON object.
    """
    imported = import_version(folder, newest_version(folder) if version is None else version, target, base)
    if json:
        shown = {
            "path": str(imported.path),
            "version": imported.version,
            "seed": str(imported.seed),
            "deltas": list(imported.deltas),
            "snapshot_bytes": imported.snapshot_bytes,
        }
        print(jsonlib.dumps(shown))
    else:
        print(
            f"{imported.path}: version {imported.version}, {format_size(imported.snapshot_bytes)}, "
            f"from {imported.seed} and {len(imported.deltas)} deltas"
        )
    return 0
