"""Directories of benches: whose they are, and that only those of the dead are removed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench import scratch


def dead_pid() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
        return process.pid


def test_what_a_dead_process_left_is_removed_read_only_or_not(tmp_path: Path) -> None:
    left = tmp_path / f"chappe-faults-source-{dead_pid()}-ab_c1"
    landed = left / "store" / "snapshots" / "1"
    landed.mkdir(parents=True)
    (landed / "model").write_bytes(b"x")
    for path in (landed / "model", landed, landed.parent):
        path.chmod(0o555)
    assert scratch.clean((tmp_path,)) == [left]
    assert list(tmp_path.iterdir()) == []


def test_what_is_at_work_and_what_is_not_ours_stays(tmp_path: Path) -> None:
    mine = scratch.make("peers", tmp_path)
    others = [tmp_path / name for name in ("chappe-peers-1-abc", "chappe-peers", "chappe-")]
    for path in others:
        path.mkdir()
    (tmp_path / f"chappe-hop-{dead_pid()}-file").write_bytes(b"")
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / f"chappe-hop-{dead_pid()}-link").symlink_to(outside)
    assert scratch.clean((tmp_path,)) == []
    assert mine.is_dir()
    assert outside.is_dir()


def test_a_place_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert scratch.clean((tmp_path / "nowhere",)) == []
