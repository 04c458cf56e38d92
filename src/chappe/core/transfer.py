"""A relay's own state: what it was told to hold, how far each object is, and what is to be done next.

It decides which fetches run, when an object lands, which version the hook is started for, what is dropped, and what the
coordinator hears. It must not know sockets, files, clocks or processes: events in, effects out, `handle` is the only
mutator. Its children are not its business: the store serves them whatever happens here. What is here, lands and is
installed is in `core/inventory`, the streams from parents in `core/upstreams`; here is what one means for the other.

      Assigned            last chunk            root known           no hook, or its yes
    ───────────▶ RECEIVING ────────▶ RECEIVED ──────────▶ VERIFIED ─────────────────────▶ INSTALLED
                  │ ▲  ▲  rot           │ root mismatch:      │ its no, or no answer
        disk full ▼ │  └────────────────┤ once, from scratch  ▼
                DISK_FULL               └─────▶ FAILED     FAILED (has landed, serves; the version stays current)

What happens when something else fails. Each row is a test in tests/core/test_transfer.py.

parent
  p1  cannot be dialled, or the stream breaks   reported; tried again or the next fallback; only what lacks is asked for
  p2  stalls, or leaves                         the next fallback at once, reported
  p3  restarts elsewhere                        the new order (newer epoch, other address) replaces the fetch
  p4  sends bad chunks                          told which on the same edge at once; the second time the next source
  p5  breaks the protocol                       the next source, reported
  p6  does not know the object yet              short retries that nobody hears of; reported when they run out
  p7  is a fallback and busy                    once more in half a second, then the next one; not a loss
  p8  evicts us, or calls the token stale/bad   reported; a growing wait for the newer order, no fight
  p9  says complete and gives nothing           a growing wait, never a tight loop
  p10 dies when all chunks are here             nothing to do
  p11 drops the object                          reported; a growing wait for the coordinator's word
  p12 is the second to send the same bad chunk  the page here is wrong: from scratch (the only source: its fourth time)
  p13 sends when another one is ordered         what it has on its way is taken, the rest asked of the other one;
                                                nobody is blamed, however that ends, within a second
  p14 has taken another child already           nobody hears of it: the order that says so is on its way here, too
coordinator
  c1  is away                                   fetches, landing and installing go on; only leaving does not wait for it
  c2  comes back with the same assignment       nothing changes, it is acknowledged
  c3  sends an older assignment                 ignored
  c4  names an object no more                   partial: dropped; landed: left to retention; told when it is gone
  c5  knows no parent                           the fetch is closed, the object waits and keeps serving
  c6  does not know the root yet                RECEIVED, lands when it comes
  c7  names another root for what has landed    the landed one stays and is what is reported
  c8  makes the fallback in use the parent      the stream goes on under the new epoch
  c9  changes the map of stripes                what is on its way is taken, then all that lacks is asked for anew
disk
  d1  is full while receiving                   DISK_FULL, fetch closed, tried every 2 s, goes on by itself
  d2  is full while landing                     DISK_FULL, landing tried again
  d3  fails otherwise                           FAILED with the reason, tried again every 10 s
  d4  rots                                      what was dropped is fetched again; landed files are replaced then
  d5  root mismatch                             what has rotted here is fetched again, then lands; where nothing has:
                                                from scratch, once; then FAILED for good
  d6  target withdrawn while landing            not pulled from under the landing; dropped after it, if it failed
  d7  loses a write                             from scratch, after 10 s
  d8  has no base for a delta, or not its bytes FAILED for good, still served; another object brings the version, and
                                                what came out right of it is kept for that, whatever is assigned before
install hook
  i1  says no                                   FAILED with its reason, not started again for this version
  i2  is slow while newer versions land         only the newest is started, after it has ended
  i3  never answers (confirm)                   FAILED after the timeout; a late yes counts
  i4  answers for a version that is not here    ignored
  i5  older version lands late                  VERIFIED, neither current nor installed
this process
  s1  restarts while receiving                  goes on with what the store restored
  s2  restarts between last chunk and landing   lands when the root is known
  s3  restarts between landing and install      the hook runs (again, if it was killed in the middle)
  s4  restarts after install                    the hook does not run again
  s5  is told to stop                           asks to leave; goes when released, after 3 s, or with nobody to ask
  s6  hears of a fetch that it closed           ignored
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from chappe.core.effects import Log, WakeAt
from chappe.core.events import HeldEdge, Holding, ObjectState
from chappe.core.holding import Held, Waiting
from chappe.core.installing import InstallMode
from chappe.core.inventory import Inventory
from chappe.core.ranges import Range, RangeSet
from chappe.core.reasons import ParentLossReason
from chappe.core.relay_events import (
    Acknowledge,
    AdmitChildren,
    AskToLeave,
    Assigned,
    Assignment,
    ChunksDropped,
    Connected,
    Disconnected,
    FetchConnected,
    FetchEnded,
    InstallEnded,
    Landed,
    LandFailed,
    LocalFault,
    Mend,
    Progress,
    RelayEffect,
    RelayEvent,
    Released,
    Removed,
    ReportHolding,
    ResetObject,
    Restored,
    Stop,
    StopRequested,
    Tick,
)
from chappe.core.upstream import Upstream
from chappe.core.upstreams import Upstreams


@dataclass(frozen=True, slots=True)
class TransferConfig:
    """Times in seconds. A disk that is full is looked at often: somebody is freeing room right now."""

    install: InstallMode = InstallMode.NONE
    install_timeout_s: float = 600.0
    disk_full_retry_s: float = 2.0
    store_fault_retry_s: float = 10.0
    leave_timeout_s: float = 3.0


class Transfer:
    """`handle(event, now)` returns what to do, in order. `jitter()` gives numbers in [0, 1)."""

    def __init__(self, config: TransferConfig, restored: Iterable[Restored], jitter: Callable[[], float]) -> None:
        self.config = config
        self._inventory = Inventory(config.install, config.install_timeout_s, restored)
        self._upstreams = Upstreams(jitter)
        self._connected = False
        self._leave_by: float | None = None
        self._stopped = False

    # ---- what is so now --------------------------------------------------------------------------------------------

    @property
    def assignment_epoch(self) -> int:
        """Of the last assignment carried out, 0 for none."""
        return self._inventory.assignment.epoch

    def holdings(self) -> tuple[Holding, ...]:
        return self._inventory.holdings()

    def edges(self) -> tuple[HeldEdge, ...]:
        """The streams that are really there."""
        return self._upstreams.held()

    def versions(self) -> dict[ObjectState, int]:
        """The newest version of which all chunks are here, that has landed, that is installed; 0 for none."""
        return self._inventory.versions()

    def ready(self) -> tuple[bool, str]:
        """Whether the version that readers follow is installed, and a line that says so."""
        return self._inventory.ready()

    # ---- the one door ----------------------------------------------------------------------------------------------

    def handle(self, event: RelayEvent, now: float) -> list[RelayEffect]:
        if self._stopped:
            return []
        effects = self._dispatch(event, now)
        if self._stopped:
            return effects
        effects += self._settle(now)
        wake = self._next_wake(now)
        if wake is not None:
            effects.append(WakeAt(wake))
        return effects

    def _dispatch(self, event: RelayEvent, now: float) -> list[RelayEffect]:
        match event:
            case Assigned(assignment):
                return self._on_assigned(assignment, now)
            case Progress():
                return self._on_progress(event)
            case ChunksDropped(object_id, chunks):
                return self._on_chunks_dropped(object_id, chunks)
            case FetchConnected(fetch):
                upstream = self._upstreams.of(fetch)
                return [] if upstream is None else upstream.on_connected()
            case FetchEnded():
                return self._on_fetch_ended(event, now)
            case Landed(object_id, full):
                return self._inventory.on_landed(object_id, full)
            case LandFailed():
                return self._on_land_failed(event, now)
            case Removed(object_ids):
                return self._inventory.on_removed(object_ids)
            case InstallEnded(version, ok, reason):
                return self._inventory.on_install_ended(version, ok, reason)
            case Connected() | Disconnected():
                self._connected = isinstance(event, Connected)
                leaving = self._leave_by is not None
                return self._stop() if leaving and not self._connected else []
            case StopRequested():
                return self._on_stop_requested(now)
            case Released():
                return self._stop()
            case Tick():
                return self._on_tick(now)

    def _settle(self, now: float) -> list[RelayEffect]:
        """Start whatever is due: landings, fetches, the hook. Doing it twice is doing it once."""
        effects = self._inventory.begin_landings(now)
        effects += self._upstreams.run(lambda upstream: self._wanted(upstream, now), now)
        return [*effects, *self._inventory.begin_install(now)]

    def _wanted(self, upstream: Upstream, now: float) -> bool:
        held = self._inventory[upstream.order.object_id]
        if held.lacks(upstream.order.stripes, upstream.order.stripe):
            return held.wants_chunks(now)
        return upstream.fetch is not None  # its parent says so next

    def _next_wake(self, now: float) -> float | None:
        times = (self._upstreams.wake_at, self._inventory.next_wake(now), self._leave_by)
        return min((t for t in times if t is not None), default=None)

    # ---- the assignment --------------------------------------------------------------------------------------------

    def _on_assigned(self, assignment: Assignment, now: float) -> list[RelayEffect]:
        newest = self.assignment_epoch
        if assignment.epoch < newest:
            why = "older than the one carried out; if the coordinator lost its state, restart relayd"
            return [Log("assignment ignored", why, {"epoch": assignment.epoch, "newest": newest})]
        effects = self._inventory.assign(assignment)
        effects.append(AdmitChildren(assignment.edges))
        named = {target.object_id for target in assignment.targets}
        effects += self._upstreams.order([edge for edge in assignment.edges if edge.object_id in named], now)
        effects += self._inventory.drop_unwanted()
        effects.append(self._inventory.retain())
        effects.append(Acknowledge(assignment.epoch))
        return effects

    # ---- receiving -------------------------------------------------------------------------------------------------

    def _on_progress(self, event: Progress) -> list[RelayEffect]:
        held = self._inventory.get(event.object_id)
        if held is None:
            return []
        was_complete = held.complete
        if not held.on_progress(event.chunks, event.chunks_total):
            return []
        effects: list[RelayEffect] = []
        if held.landed and held.complete and not was_complete:
            held.on_mended()
            effects.append(Mend(held.object_id))
        return [*effects, ReportHolding(held.holding())]

    def _on_chunks_dropped(self, object_id: str, chunks: tuple[Range, ...]) -> list[RelayEffect]:
        held = self._inventory.get(object_id)
        before = () if held is None else held.chunks
        if held is None or not held.on_dropped(chunks):
            return []
        dropped = RangeSet(before)
        for start, stop in chunks:
            dropped.discard(start, stop)
        return [ReportHolding(held.holding()), *self._upstreams.lost(object_id, dropped, held.chunks_total)]

    def _on_fetch_ended(self, event: FetchEnded, now: float) -> list[RelayEffect]:
        upstream = self._upstreams.of(event.fetch)
        if upstream is None:
            return self._on_drained(event, now)
        match event.reason:
            case None:
                upstream.on_done(event.progressed, now)
                return []
            case ParentLossReason() as loss:
                source = upstream.source
                effects = upstream.on_lost(event, loss, now)
                if loss is ParentLossReason.CORRUPT and event.rejected and source is not None:
                    held = self._inventory[upstream.order.object_id]
                    effects += self._on_corrupt(held, event.rejected[0], source.peer.worker_id)
                return effects
            case LocalFault() as fault:
                upstream.on_done(progressed=True, now=now)
                return self._on_fault(self._inventory[upstream.order.object_id], fault, event.detail, now)

    def _on_drained(self, event: FetchEnded, now: float) -> list[RelayEffect]:
        object_id = self._upstreams.drained(event.fetch)
        if object_id is None or not isinstance(event.reason, LocalFault):
            return []
        return self._on_fault(self._inventory[object_id], event.reason, event.detail, now)

    def _on_corrupt(self, held: Held, chunk: int, source: str) -> list[RelayEffect]:
        if not held.on_corrupt(chunk, source):
            return []
        effects = self._upstreams.restart(held.object_id)
        log = Log("page doubted", held.reason, {"object_id": held.object_id})
        return [*effects, ResetObject(held.object_id), ReportHolding(held.holding()), log]

    # ---- the store is in the way -----------------------------------------------------------------------------------

    def _on_fault(self, held: Held, fault: LocalFault, detail: str, now: float) -> list[RelayEffect]:
        full = fault is LocalFault.DISK_FULL
        wait_s = self.config.disk_full_retry_s if full else self.config.store_fault_retry_s
        waiting = Waiting(ObjectState.DISK_FULL if full else ObjectState.FAILED, detail, now + wait_s)
        effects: list[RelayEffect] = []
        if held.on_fault(waiting, fault.value, now):
            about = Log("store fault", fault.value, {"object_id": held.object_id, "detail": detail}, warning=True)
            effects.append(about)
        if fault is LocalFault.DAMAGED:
            held.on_reset()
            effects += [*self._upstreams.end_drains(held.object_id), ResetObject(held.object_id)]
        return [*effects, ReportHolding(held.holding())]

    def _on_land_failed(self, event: LandFailed, now: float) -> list[RelayEffect]:
        object_id, fault, detail = event.object_id, event.fault, event.detail
        held = self._inventory[object_id]
        held.landing = False
        if self._inventory.target(object_id) is None:
            return self._inventory.drop_if_unwanted(held)
        if fault is LocalFault.DELTA:
            held.on_delta_failed(detail, event.part)
            return [ReportHolding(held.holding()), Log("delta failed", detail, {"object_id": object_id})]
        if fault is LocalFault.ROTTEN:  # ChunksDropped has said what is left
            return [Log("rot found", detail, {"object_id": object_id})]
        if fault is not LocalFault.ROOT_MISMATCH:
            return self._on_fault(held, fault, detail, now)
        again = held.on_root_mismatch(detail)
        effects = [*self._upstreams.end_drains(object_id), ResetObject(object_id)] if again else []
        return [*effects, ReportHolding(held.holding()), Log("root mismatch", detail, {"object_id": object_id})]

    # ---- leaving, and time -----------------------------------------------------------------------------------------

    def _on_stop_requested(self, now: float) -> list[RelayEffect]:
        if not self._connected or self._leave_by is not None:  # nobody to ask, or told twice
            return self._stop()
        self._leave_by = now + self.config.leave_timeout_s
        return [AskToLeave()]

    def _stop(self) -> list[RelayEffect]:
        self._stopped = True
        return [*self._upstreams.close(), Stop()]

    def _on_tick(self, now: float) -> list[RelayEffect]:
        if self._leave_by is not None and now >= self._leave_by:
            return self._stop()
        return self._inventory.end_overdue_install(now)
