"""`chappe verify DIR`: re-hash a landed snapshot, and say file by file what is wrong."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from chappe.cli.settings import EXIT_FAILED
from chappe.hop.verify import FileState, VerifyReport, verify_directory
from chappe.units import format_size


def verify(
    directory: Annotated[Path, Parameter(show_env_var=False)],
    /,
    *,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Re-hash a landed snapshot against its manifest. Exit code 1 when anything differs.

    Parameters
    ----------
    directory
        A relay's store, its `current`, or one of its `snapshots/<version>`.
    json
        Print one JSON object.
    """
    report = verify_directory(directory)
    if json:
        print(jsonlib.dumps(report_json(report), indent=2))
    else:
        print_report(report)
    return 0 if report.ok else EXIT_FAILED


def report_json(report: VerifyReport) -> dict[str, Any]:
    return {
        "path": str(report.path),
        "version": report.version,
        "ok": report.ok,
        "root": report.root_expected,
        "root_actual": report.root_actual or None,
        "snapshot_bytes": report.snapshot_bytes,
        "files": [
            {"path": f.path, "state": f.state.value, "size_bytes": f.size_bytes, "detail": f.detail}
            for f in report.files
        ],
    }


def print_report(report: VerifyReport) -> None:
    for file in report.files:
        if file.state is not FileState.OK:
            print(f"{file.state.value:9} {file.path}{f' ({file.detail})' if file.detail else ''}")
    good = sum(f.state is FileState.OK for f in report.files)
    print(f"version {report.version}: {good} of {len(report.files)} files ok, {format_size(report.snapshot_bytes)}")
    print(f"root {report.root_expected}: {'matches' if report.root_actual == report.root_expected else 'DIFFERS'}")
