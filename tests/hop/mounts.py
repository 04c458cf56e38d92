"""File systems of their own for tests: an image in a temporary directory, mounted over a loop device. Needs root."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

_MAKE = {"xfs": ("mkfs.xfs", "-q", "-m", "reflink=1"), "btrfs": ("mkfs.btrfs", "-q"), "ext4": ("mkfs.ext4", "-q")}
_PACKAGE = {"xfs": "xfsprogs", "btrfs": "btrfs-progs", "ext4": "e2fsprogs"}
_SIZE_BYTES = 400 << 20  # XFS has 300 MiB at least. A file with a hole: what is not written takes nothing
_SHUTDOWN = 0x8004587D  # _IOR('X', 125, 4 bytes): FS_IOC_SHUTDOWN of linux/fs.h
_LOSE_THE_LOG = 2


def unavailable(kind: str) -> str:
    """Why there can be none of this kind here; empty when there can."""
    if os.geteuid() != 0:
        return "a file system of its own needs root"
    if shutil.which(_MAKE[kind][0]) is None:
        return f"{_MAKE[kind][0]} is missing: install {_PACKAGE[kind]}"
    if not Path("/dev/loop-control").exists():
        return "this machine has no loop devices"
    with tempfile.TemporaryDirectory(prefix="chappe-mount-") as directory:
        try:
            with Mounted(kind, Path(directory)):
                return ""
        except RefusedError as error:  # a container may have root and no right to mount, a kernel no such file system
            return f"this machine mounts no {kind}: {error}"


class RefusedError(Exception):
    """A command about a file system has failed; what it said."""


class Mounted:
    """`path` is its root directory. Use as a context manager."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.path = directory / kind
        self._image = directory / f"{kind}.img"
        self._options = ("-o", "nouuid") if kind == "xfs" else ()  # or it will not be there twice
        self._device = ""
        self.path.mkdir()
        with self._image.open("wb") as image:
            image.truncate(_SIZE_BYTES)
        _run(*_MAKE[kind], str(self._image))

    def __enter__(self) -> Mounted:
        self.mount()
        return self

    def __exit__(self, *_: object) -> None:
        self.unmount()
        self._image.unlink()

    def mount(self) -> None:
        """A device of its own each time: a network namespace that was made meanwhile, by whomever, keeps what was
        mounted then until it ends, and a file system that has lost its power would be found there again."""
        self._device = _run("losetup", "--find", "--show", str(self._image)).strip()
        try:
            _run("mount", *self._options, self._device, str(self.path))
        except RefusedError:
            _run("losetup", "--detach", self._device)
            raise

    def unmount(self) -> None:
        _run("umount", str(self.path))
        _run("losetup", "--detach", self._device)

    def used_bytes(self) -> int:
        """When all is written and what was freed is free."""
        _run("sync", "-f", str(self.path))
        at = os.statvfs(self.path)
        return (at.f_blocks - at.f_bfree) * at.f_frsize

    def cut_power(self) -> None:
        """Nothing gets to the device from now on: neither what is dirty nor what of the journal is only in memory."""
        fd = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, _SHUTDOWN, struct.pack("=I", _LOSE_THE_LOG))
        finally:
            os.close(fd)

    def power_up(self) -> None:
        self.unmount()
        self.mount()


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RefusedError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
