"""What a simulated relay does to its disk: what lands there, what is installed from it, what rots, what a kill costs.

The store outlives the process; what a killed process had not written down is lost, what rotted is found when its chunk
is read again by somebody who checks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chappe.core.relay_events import (
    ChunksDropped,
    InstallEnded,
    Land,
    Landed,
    LandFailed,
    LocalFault,
    RelayEvent,
    Removed,
    Restored,
)
from chappe.core.transfer import Transfer
from chappe.sim.applying import bases_held, land_encoded
from chappe.sim.clock import HostClock
from chappe.sim.copies import Copy
from chappe.sim.fetching import Fetcher
from chappe.sim.process import Line
from chappe.sim.stripes import view_of

if TYPE_CHECKING:
    from chappe.sim.world import World

JOURNAL_LOSS_MAX = 64  # chunks that a killed process may have stored and not written down


def root_of(copy: Copy) -> str:
    """From the leaves as they arrived."""
    return f"{copy.object.root}:altered" if copy.arrived else copy.object.root


class Storing(Fetcher):
    machine: Transfer

    def __init__(self, world: World, worker_id: str, name: str, line: Line, clock: HostClock) -> None:
        super().__init__(world, worker_id, name, line, clock)
        self.current = 0
        self.installed: set[int] = set()
        self.hook_broken = False  # what it is given it does not load

    def restored(self, copy: Copy) -> Restored:
        """As the machine takes it up."""
        root = copy.object.root if copy.version else ""
        installed = copy.version in self.installed
        return Restored(copy.object.object_id, copy.version, root, tuple(iter(copy.held)), copy.total, installed)

    # ---- over the ends of processes ----------------------------------------------------------------------------------

    def recover(self, copy: Copy) -> None:
        """What the journal claims is hashed again, and what is wrong is forgotten."""
        for chunk in list(copy.at_rest):
            if copy.at_rest[chunk] != copy.page_tags.get(chunk, 0):
                copy.drop(chunk)
        copy.arrived = dict(copy.at_rest)
        copy.rotted.clear()

    def lose_journal(self, copy: Copy) -> None:
        last = list(copy.held)[-1][1]
        lost = self.world.random.randint(0, JOURNAL_LOSS_MAX)
        for start, stop in copy.held.discard(max(0, last - lost), last):
            for chunk in {*copy.at_rest, *copy.arrived}:
                if start <= chunk < stop:
                    copy.drop(chunk)

    # ---- now ---------------------------------------------------------------------------------------------------------

    def recheck(self, copy: Copy, chunks: tuple[int, ...]) -> None:
        if copy.recheck(chunks):
            self.dropped_chunks(copy)

    def dropped_chunks(self, copy: Copy) -> None:
        copy.told = (len(copy.held), copy.header)
        self.handle(ChunksDropped(copy.object.object_id, tuple(iter(copy.held))))
        for stream in copy.children:
            self.agenda.after(stream.delay_s, stream.see, view_of(copy, stream.stripe, self.agenda.now))

    def fill_disk(self) -> None:
        self.disk_full = True
        for stream in list(self.streams.values()):
            self.run(self.life, self.stream_over, stream, LocalFault.DISK_FULL, ())

    def drop_object(self, object_id: str) -> None:
        copy = self.copies.pop(object_id, None)
        if copy is not None:
            self.drop_copy(copy)

    def land(self, order: Land) -> None:
        copy = self.copies.get(order.object_id)
        if copy is None:
            return
        copy.settle(self.agenda.now)
        self.world.checks.streamed.lands(self, copy)
        event = land_encoded(self, order, copy) if copy.object.full_id else self._land_full(order, copy)
        if isinstance(event, Landed):
            landed = copy if event.full is None else self.copies[event.full.object_id]
            self.current = max(self.current, order.version)
            self.world.checks.bytes.landed(self, landed)
            self.world.checks.lanes.landed(self, landed, order.root)
        self.handle(event)
        self.world.checks.bytes.versions(self)

    def _land_full(self, order: Land, copy: Copy) -> RelayEvent:
        root = root_of(copy)
        if self.disk_full:
            return LandFailed(order.object_id, LocalFault.DISK_FULL, "no room")
        if not copy.complete:
            return LandFailed(order.object_id, LocalFault.STORE, "chunks are missing")
        if root != order.root:
            return LandFailed(order.object_id, LocalFault.ROOT_MISMATCH, f"root is {root}")
        copy.version = order.version
        return Landed(order.object_id)

    def install(self, version: int) -> None:
        """The hook has come to its end."""
        ok = not self.hook_broken
        if ok:
            self.installed.add(version)
        else:
            self.world.counts["failed hooks"] += 1
        self.handle(InstallEnded(version, ok, "" if ok else "exit code 1"))
        self.world.checks.bytes.install_ended(self, version, ok=ok)

    def retain(self, objects: tuple[str, ...], versions: tuple[int, ...]) -> None:
        landed = sorted(c.version for c in self.copies.values() if c.version)
        keep = {*versions, *landed[-2:], *bases_held(self)}
        gone = [i for i, c in self.copies.items() if c.version and c.version not in keep and i not in objects]
        parts = [i for i, c in self.copies.items() if c.salvaged and not c.version and not c.complete]
        gone += [i for i in parts if i not in objects]
        self.world.checks.streamed.thrown_away(self, gone)
        for object_id in gone:
            self.drop_object(object_id)
            self.guard.forget(object_id)
        if gone:
            self.handle(Removed(tuple(gone)))
