from __future__ import annotations

import os
from pathlib import Path

import pytest

from chappe.hop import filesystem


@pytest.fixture(autouse=True)
def _forget() -> None:
    filesystem._keeps_order.cache_clear()


def of_kind(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(filesystem, "magic", lambda fd: number)


def test_ext4_keeps_the_order_of_names_where_it_has_a_journal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    of_kind(monkeypatch, 0xEF53)
    devices, journals = tmp_path / "devices", tmp_path / "journals"
    at = tmp_path.stat().st_dev
    for directory in (devices, journals, tmp_path / "sda1", tmp_path / "sda"):
        directory.mkdir()
    (devices / f"{os.major(at)}:{os.minor(at)}").symlink_to(tmp_path / "sda1")
    monkeypatch.setattr(filesystem, "_DEVICES", devices)
    monkeypatch.setattr(filesystem, "_JOURNALS", journals)
    assert not filesystem.keeps_order(tmp_path)
    filesystem._keeps_order.cache_clear()
    (journals / "sda-8").mkdir()  # of another file system
    assert not filesystem.keeps_order(tmp_path)
    filesystem._keeps_order.cache_clear()
    (journals / "sda1-8").mkdir()
    assert filesystem.keeps_order(tmp_path)


@pytest.mark.parametrize(
    ("number", "keeps"), [(0x58465342, True), (0x9123683E, False), (0x01021994, False), (0, False)]
)
def test_xfs_keeps_it_and_btrfs_tmpfs_and_strangers_do_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int, keeps: bool
) -> None:
    of_kind(monkeypatch, number)
    assert filesystem.keeps_order(tmp_path) == keeps


def test_memory_is_known(tmp_path: Path) -> None:
    fd = os.open("/dev/shm", os.O_RDONLY)
    try:
        assert filesystem.magic(fd) in filesystem.IN_MEMORY
    finally:
        os.close(fd)
    with pytest.raises(FileNotFoundError):
        filesystem.keeps_order(tmp_path / "not here")
