"""Applies a delta while it still arrives: the shell around `chappe.hop.applying`, one thread for each delta.

    header ──▶ base is here? ──▶ thread: reads the delta as far as it is here, waits for more ──▶ Made
    chunks ──▶ advance ─────────────────┘                        landing: all is here ──▶ wait ──┘

Children are served from the ledger whatever happens here. What fails while the delta arrives is tried once more when it
lands. Without numpy: a relay that is sent no delta needs none, and the thread imports it when it begins.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from chappe.clock import boot_now
from chappe.core.digest import XXH3_128
from chappe.core.manifest import LEAF_BYTES, FileEntry, Manifest
from chappe.errors import DeltaError, StoreError
from chappe.hop.disk import Disk
from chappe.hop.objects import StoredObject
from chappe.hop.salvage import Salvage
from chappe.hop.source import SourceState


@dataclass(frozen=True, slots=True)
class Base:
    """A landed version: its manifest, and the directory with its files."""

    version: int
    manifest: Manifest
    path: Path


NOTHING = Base(0, Manifest("0" * 32, XXH3_128, LEAF_BYTES, (FileEntry("nothing", 0),)), Path())
"""What a compressed snapshot begins at: the table `chappe.payload.table.NOTHING`; there is nothing to read."""


@dataclass(frozen=True, slots=True)
class Made:
    """The full object's manifest, and the root of the files as they were written; with `salvage` the root that they
    were to have, and what is right of them."""

    target: Manifest
    root: str
    salvage: Salvage | None = None


FOLLOW_S = 0.05
"""How often at most a thread that applies a delta hears of more of it."""


FORWARD_S = 0.2
"""How long applying stays in the background when all has arrived: a child has the rest within some chunks' time."""


class Arriving:
    """The bytes of a delta from its beginning on, for one reader: it waits for what has not come. From any thread."""

    def __init__(self, size_bytes: int) -> None:
        """`size_bytes` is what it has at most while its end is open."""
        self.size_bytes = size_bytes
        self._here = 0
        self._whole_at: float | None = None
        self._stopped = False
        self._changed = threading.Condition()
        self._acting = threading.Lock()

    def advance(self, here: int, size_bytes: int) -> None:
        """So many bytes from the beginning are here. It may be fewer than before: a chunk has rotted."""
        with self._changed:
            self._here, self.size_bytes = here, size_bytes
            if here < size_bytes:
                self._whole_at = None
            elif self._whole_at is None:
                self._whole_at = boot_now()
            self._changed.notify_all()

    def stop(self) -> None:
        """Nobody wants it any more: the reader is told, and nothing is created from now on."""
        with self._acting, self._changed:
            self._stopped = True
            self._changed.notify_all()

    def urgent(self) -> bool:
        """Nothing has been waited for for a moment, in which what came last could be forwarded."""
        with self._changed:
            return self._whole_at is not None and boot_now() >= self._whole_at + FORWARD_S

    def rest(self, seconds: float) -> None:
        """Return after so long, or as soon as it is urgent, or not wanted any more."""
        until = boot_now() + seconds
        with self._changed:
            while not self._stopped and (now := boot_now()) < self._rests_until(until):
                self._changed.wait(self._rests_until(until) - now)

    def _rests_until(self, until: float) -> float:
        return until if self._whole_at is None else min(until, self._whole_at + FORWARD_S)

    def wait(self, stop: int) -> int:
        """Return when the bytes before `stop` are here, or before the end if that comes first; say which. Raises
        StoreError when they are not wanted any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._here >= min(stop, self.size_bytes))
            self._refuse_if_stopped()
            return min(stop, self.size_bytes)

    @contextlib.contextmanager
    def acting(self) -> Iterator[None]:
        """For what makes names on the disk: `stop` waits for its end. Raises StoreError when it has been stopped."""
        with self._acting:
            self._refuse_if_stopped()
            yield

    def _refuse_if_stopped(self) -> None:
        if self._stopped:
            raise StoreError("the delta is not wanted any more")


class Ahead:
    """One delta being applied to its base. `advance`, `stop` and `wait` from any thread."""

    def __init__(self, disk: Disk, delta: StoredObject, base: Base, size_bytes: int) -> None:
        self.base = base
        self.arriving = Arriving(size_bytes)
        self._disk, self._delta = disk, delta
        self._made: Future[Made] = Future()
        # A daemon: one that waits for chunks that nobody sends must not hold up the end of the process.
        threading.Thread(target=self._run, name="chappe-ahead", daemon=True).start()

    def _run(self) -> None:
        try:
            made = self._make()
        except BaseException as error:  # noqa: BLE001  carried to whoever waits
            self._made.set_exception(error)
        else:
            self._made.set_result(made)

    def _make(self) -> Made:
        from chappe.hop.applying import apply_delta

        with self._delta.open_delta() as read:

            def read_at(offset: int, length: int) -> bytes:
                return read(offset, max(0, self.arriving.wait(offset + length) - offset))

            return apply_delta(self._disk, self._delta.work, self.arriving, read_at, self.base)

    def advance(self) -> None:
        """As far as the ledger says."""
        held, total = self._delta.ledger.held.ranges(), self._delta.ledger.total
        here = held[0][1] if held and held[0][0] == 0 else 0
        manifest = self._delta.manifest
        assert manifest is not None  # there is a ledger
        size = manifest.payload_bytes
        self.arriving.advance(size if here == total else here * manifest.chunk_bytes, size)

    def wait(self) -> Made:
        """Blocking. Raises DeltaError, OSError; StoreError after `stop`."""
        return self._made.result()

    def succeeds(self) -> bool:
        """Blocking: how it ends. True also when it was stopped, or worse: `wait` says so."""
        return not isinstance(self._made.exception(), DeltaError | OSError)

    @property
    def failed(self) -> bool:
        return self._made.done() and self._made.exception() is not None

    def end(self) -> None:
        """Stop, and return when the thread has."""
        self.arriving.stop()
        self._made.exception()


class Appliers:
    """All deltas of a store that are being applied. The caller sees to it that a base is not removed meanwhile."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._of: dict[str, Ahead] = {}

    def get(self, object_id: str) -> Ahead | None:
        return self._of.get(object_id)

    def begin(self, delta: StoredObject, base: Base) -> Ahead:
        """For a delta with a header."""
        manifest = delta.manifest
        assert manifest is not None
        ahead = self._of[delta.object_id] = Ahead(self._disk, delta, base, manifest.payload_bytes)
        ahead.advance()
        return ahead

    def stop(self, object_id: str) -> None:
        """Its directory may be moved away from now on."""
        ahead = self._of.pop(object_id, None)
        if ahead is not None:
            ahead.arriving.stop()

    def forget(self, object_id: str) -> None:
        self._of.pop(object_id, None)

    def bases(self) -> list[int]:
        """Versions that are being read."""
        return [ahead.base.version for ahead in list(self._of.values())]

    def close(self) -> None:
        """What is half made is gone on with by the next process."""
        while self._of:
            self._of.popitem()[1].end()


class AppliesAhead(Protocol):
    """The store."""

    def apply_ahead(self, held: StoredObject) -> bool: ...


async def follow(store: AppliesAhead, held: StoredObject, log: Callable[[str], None]) -> None:
    """Have a delta applied as it arrives, until all of it is here, or it is dropped. A full object needs nothing."""
    while held.state is SourceState.OPEN and (held.manifest is None or held.delta):
        seen = held.signal.count
        if held.delta:
            try:
                if not store.apply_ahead(held):
                    return
            except StoreError as error:
                log(str(error))
                return
            if held.ledger.complete:
                return
        await held.signal.wait(seen, FOLLOW_S)
