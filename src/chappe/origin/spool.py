"""Takes a consistent copy of tensors that a trainer will write to again: one safetensors file, one copy, never two.

    tensors ──▶ check all, find ties ──▶ reserve the file ──▶ copy tensor by tensor into it ──▶ Snapshot

Where: `directory` if given, else /dev/shm when it and the memory that is free have room for the copy and a margin, else
the temporary directory. Contiguous host tensors are written as they are; others (on a GPU, strided) are copied straight
into a mapping of the file, so that no second copy exists on the host. The space is reserved first: no room is an error
before the first byte, not in the middle. Leftovers of a publisher that was killed are removed by the next one.

Tied tensors (the same memory, shape and strides) are stored once and named in the metadata, removed name to kept name,
as safetensors' `save_model` does. Tensors that share memory in any other way are refused by name, and so is every dtype
that the format does not know. torch is never imported here: a value is a torch tensor only where torch is already.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from chappe.errors import DiskFullError, SnapshotError
from chappe.origin.scan import Snapshot, scan
from chappe.origin.tensors import HostTensor, describe, find_ties
from chappe.payload.safetensors import build_header, data_bytes, payload_order
from chappe.units import format_size

FILE_NAME = "model.safetensors"
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - our directory in it is private and has a random name
MARGIN_BYTES = 256 << 20
"""What must stay free beside the copy: in memory the trainer goes on allocating."""
_PREFIX = "chappe-spool-"


class SpooledSnapshot:
    """The copy, alive until `close()`. `snapshot` is what an OriginObject takes; `directory` is ours alone."""

    def __init__(self, snapshot: Snapshot, directory: Path, lock: int) -> None:
        self.snapshot = snapshot
        self.directory = directory
        self._lock = lock
        self._closed = self._kept = False

    @property
    def path(self) -> Path:
        return self.directory / FILE_NAME

    def keep(self) -> None:
        """It is the base of the next delta: `close` leaves it there until `let_go`."""
        self._kept = True

    def let_go(self) -> None:
        self._kept = False
        if self._closed:
            self.close()

    def close(self) -> None:
        """Remove the copy. Idempotent. Files that are open can still be read until they are closed."""
        self._closed = True
        if self._lock >= 0 and not self._kept:
            shutil.rmtree(self.directory, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def spool_tensors(tensors: Mapping[str, Any], directory: Path | None = None) -> SpooledSnapshot:
    """Copy named torch or numpy tensors; when it returns, the caller may write to them again. Blocking.

    Raises SnapshotError naming the tensor that cannot be published, DiskFullError without room.
    """
    if not tensors:
        raise SnapshotError("there are no tensors to publish")
    described = [describe(name, value) for name, value in tensors.items()]
    ties = find_ties(described)
    kept = {tensor.spec.name: tensor for tensor in described if tensor.spec.name not in ties}
    order = payload_order(tensor.spec for tensor in kept.values())
    header = build_header(order, _metadata(described, ties))
    total = len(header) + sum(data_bytes(spec.dtype, spec.shape) for spec in order)

    home = directory if directory is not None else choose_directory(total)
    remove_leftovers(home)
    spool, lock = make_directory(home)
    try:
        _write(spool / FILE_NAME, total, header, [kept[spec.name] for spec in order])
        return SpooledSnapshot(scan(spool / FILE_NAME), spool, lock)
    except BaseException:
        shutil.rmtree(spool, ignore_errors=True)
        os.close(lock)
        raise


def _metadata(described: list[HostTensor], ties: Mapping[str, str]) -> dict[str, str]:
    metadata = dict(ties)
    form = "pt" if any(tensor.is_torch for tensor in described) else "np"
    names = {tensor.spec.name for tensor in described}
    if "format" not in names and form not in names:  # where it would read as a tie it is left out
        metadata["format"] = form
    return metadata


def _write(path: Path, total: int, header: bytes, tensors: list[HostTensor]) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            os.posix_fallocate(descriptor, 0, total)
        except OSError as error:
            raise DiskFullError(
                f"{path.parent.parent} has no room to hold {format_size(total)} of tensors ({error.strerror}): "
                f"name another spool directory"
            ) from error
        _write_all(descriptor, memoryview(header), 0)
        offset = len(header)
        for tensor in tensors:
            size = data_bytes(tensor.spec.dtype, tensor.spec.shape)
            if size:
                plain = tensor.plain_bytes()
                if plain is not None:
                    _write_all(descriptor, plain, offset)
                else:
                    tensor.copy_into(descriptor, offset, size)
            offset += size
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done : done + (1 << 30)], offset + done)


def free_bytes(directory: Path) -> int:
    """0 for a directory that cannot be looked at."""
    try:
        room = os.statvfs(directory)
    except OSError:
        return 0
    return room.f_bavail * room.f_frsize


def _free_memory_bytes() -> int:
    """What the host, and the container that this runs in, can still give. tmpfs promises more than that."""
    free = 0
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except OSError:  # no cgroup v2, or its root, which has no limit
        return free
    return free if limit == "max" else min(free, int(limit) - used)


def choose_directory(total: int) -> Path:
    """Memory where it has room for so many bytes and a margin, else the temporary directory.

    What a killed publisher has left in either goes first: it holds the memory that is asked for.
    """
    room = total + MARGIN_BYTES
    for home in (SHARED_MEMORY, Path(tempfile.gettempdir())):
        remove_leftovers(home)
    if os.access(SHARED_MEMORY, os.W_OK | os.X_OK) and min(free_bytes(SHARED_MEMORY), _free_memory_bytes()) >= room:
        return SHARED_MEMORY
    return Path(tempfile.gettempdir())


def make_directory(home: Path) -> tuple[Path, int]:
    """A private directory in `home`, and a lock on it that ends with this process, however that ends."""
    while True:
        try:
            spool = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=home))
        except OSError as error:
            raise SnapshotError(f"{home} cannot hold a copy of the tensors: {error.strerror}") from error
        try:
            lock = os.open(spool, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # another publisher took it for a leftover before it was locked
        fcntl.flock(lock, fcntl.LOCK_EX)
        if spool.exists():
            return spool, lock
        os.close(lock)


def remove_leftovers(home: Path) -> None:
    """Of publishers that were killed."""
    for leftover in home.glob(_PREFIX + "*"):
        try:
            lock = os.open(leftover, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:  # another user's, or gone
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(leftover, ignore_errors=True)
        except BlockingIOError:
            pass  # in use
        finally:
            os.close(lock)
