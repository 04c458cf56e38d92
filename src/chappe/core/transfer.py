"""A relay's own state: what it was told to hold, how far each object is, and what is to be done next.

It decides which fetches run, when an object lands, which version the hook is started for, what is dropped, and what the
coordinator hears. It must not know sockets, files, clocks or processes: events in, effects out, `handle` is the only
mutator. Its children are not its business: the store serves them whatever happens here.

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
from itertools import count

from chappe.core.effects import Log, Target, WakeAt
from chappe.core.events import HeldEdge, Holding, ObjectState
from chappe.core.holding import Held, Waiting
from chappe.core.installing import InstallMode, Installs
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
    DropObject,
    FetchConnected,
    FetchEnded,
    InstallEnded,
    Land,
    Landed,
    LandFailed,
    LocalFault,
    Mend,
    OpenObject,
    Progress,
    RelayEffect,
    RelayEvent,
    Released,
    Removed,
    ReportHolding,
    ResetObject,
    Restored,
    Retain,
    Stop,
    StopRequested,
    Tick,
)
from chappe.core.remapping import Remapping
from chappe.core.upstream import Upstream


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
        self._jitter = jitter
        self._fetches = count(1)
        self._objects: dict[str, Held] = {r.object_id: Held.restored(r) for r in restored}
        self._upstreams: dict[tuple[str, int], Upstream] = {}
        self._remapping = Remapping()
        self._assignment = Assignment(0)
        self._connected = False
        self._leave_by: float | None = None
        self._stopped = False
        self._installs = Installs(config.install, config.install_timeout_s)
        for held in self._objects.values():
            if held.landed:
                held.installed = held.installed or config.install is InstallMode.NONE or None
                self._installs.restore(held.version, bool(held.installed))

    # ---- what is so now --------------------------------------------------------------------------------------------

    @property
    def assignment_epoch(self) -> int:
        """Of the last assignment carried out, 0 for none."""
        return self._assignment.epoch

    def holdings(self) -> tuple[Holding, ...]:
        return tuple(held.holding() for held in self._objects.values())

    def edges(self) -> tuple[HeldEdge, ...]:
        """The streams that are really there."""
        return tuple(edge for u in self._upstreams.values() if (edge := u.held()) is not None)

    def versions(self) -> dict[ObjectState, int]:
        """The newest version of which all chunks are here, that has landed, that is installed; 0 for none."""
        named = {t.object_id: t.version for t in self._assignment.targets}
        received = [h.version or named.get(h.object_id, 0) for h in self._objects.values() if h.complete or h.landed]
        return {
            ObjectState.RECEIVED: max(received, default=0),
            ObjectState.VERIFIED: self._installs.current,
            ObjectState.INSTALLED: self._installs.installed,
        }

    def ready(self) -> tuple[bool, str]:
        """Whether the version that readers follow is installed, and a line that says so."""
        current, installed = self._installs.current, self._installs.installed
        if current == 0:
            return False, "no version has landed yet"
        if current != installed:
            return False, f"version {current} has landed and is not installed"
        return True, f"version {current} is installed"

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
                upstream = self._upstream_of(fetch)
                return [] if upstream is None else upstream.on_connected()
            case FetchEnded():
                return self._on_fetch_ended(event, now)
            case Landed(object_id, full):
                return self._on_landed(object_id, full)
            case LandFailed():
                return self._on_land_failed(event, now)
            case Removed(object_ids):
                return [effect for object_id in object_ids for effect in self._forget_landed(object_id)]
            case InstallEnded(version, ok, reason):
                return self._on_install_ended(version, ok, reason)
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

    # ---- the assignment --------------------------------------------------------------------------------------------

    def _on_assigned(self, assignment: Assignment, now: float) -> list[RelayEffect]:
        if assignment.epoch < self._assignment.epoch:
            why = "older than the one carried out; if the coordinator lost its state, restart relayd"
            return [Log("assignment ignored", why, {"epoch": assignment.epoch, "newest": self._assignment.epoch})]
        self._assignment = assignment
        effects: list[RelayEffect] = []
        targets = {t.object_id: t for t in assignment.targets}
        for object_id, target in targets.items():
            held = self._objects.setdefault(object_id, Held(object_id))
            if not held.landed:
                effects.append(OpenObject(object_id))
            elif target.root and target.root != held.root:
                effects.append(Log("root contradicted", "what has landed stays", {"version": held.version}))
        effects.append(AdmitChildren(assignment.edges))
        orders = {(o.object_id, o.stripe): o for o in assignment.edges if o.object_id in targets}
        maps = {order.object_id: order.stripes for order in orders.values()}
        for upstream in self._upstreams.values():
            if maps.get(upstream.order.object_id, upstream.order.stripes) != upstream.order.stripes:
                effects += self._remapping.drain(upstream, now)
        effects += self._remapping.close({key[0] for key in self._upstreams} - maps.keys())
        for key in [key for key in self._upstreams if key not in orders]:
            effects += self._upstreams.pop(key).close()
        for key, order in orders.items():
            if key in self._upstreams:
                effects += self._upstreams[key].take(order, now)
            else:
                self._upstreams[key] = Upstream(order, self._jitter, self._fetches.__next__)
        for held in list(self._objects.values()):
            effects += self._drop_unwanted(held)
        effects.append(self._retain())
        effects.append(Acknowledge(assignment.epoch))
        return effects

    def _drop_unwanted(self, held: Held) -> list[RelayEffect]:
        stays = held.landed and not held.delta
        if stays or held.landing or self._target(held.object_id) is not None:
            return []
        del self._objects[held.object_id]
        return [DropObject(held.object_id), ReportHolding(Holding.gone(held.object_id))]

    def _retain(self) -> Retain:
        objects = {t.object_id for t in self._assignment.targets} | {o.object_id for o in self._assignment.edges}
        objects |= {held.part for held in self._objects.values() if held.part}
        served = {self._installs.installed} - {0, self._installs.current}  # while hooks for newer ones run, or fail
        return Retain(tuple(sorted(objects)), tuple(sorted({*self._assignment.keep_versions, *served})))

    def _target(self, object_id: str) -> Target | None:
        return next((t for t in self._assignment.targets if t.object_id == object_id), None)

    # ---- receiving -------------------------------------------------------------------------------------------------

    def _on_progress(self, event: Progress) -> list[RelayEffect]:
        held = self._objects.get(event.object_id)
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
        held = self._objects.get(object_id)
        before = () if held is None else held.chunks
        if held is None or not held.on_dropped(chunks):
            return []
        effects: list[RelayEffect] = [ReportHolding(held.holding())]
        total = held.chunks_total
        dropped = RangeSet(before)
        for start, stop in chunks:
            dropped.discard(start, stop)
        for upstream in self._upstreams.values():
            order = upstream.order
            if order.object_id != object_id:
                continue
            if total is None or any(order.stripes.within(order.stripe, dropped.ranges(), total)):
                effects += upstream.close()  # it asked before: it will not bring them
        return effects

    def _upstream_of(self, fetch: int) -> Upstream | None:
        return next((u for u in self._upstreams.values() if u.fetch == fetch), None)

    def _on_fetch_ended(self, event: FetchEnded, now: float) -> list[RelayEffect]:
        upstream = self._upstream_of(event.fetch)
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
                    held = self._objects[upstream.order.object_id]
                    effects += self._on_corrupt(held, event.rejected[0], source.peer.worker_id)
                return effects
            case LocalFault() as fault:
                upstream.on_done(progressed=True, now=now)
                return self._on_fault(self._objects[upstream.order.object_id], fault, event.detail, now)

    def _on_drained(self, event: FetchEnded, now: float) -> list[RelayEffect]:
        upstream = next((u for u in self._upstreams.values() if u.drained(event.fetch)), None)
        object_id = self._remapping.ended(event.fetch) if upstream is None else upstream.order.object_id
        if object_id is None or not isinstance(event.reason, LocalFault):
            return []
        return self._on_fault(self._objects[object_id], event.reason, event.detail, now)

    def _on_corrupt(self, held: Held, chunk: int, source: str) -> list[RelayEffect]:
        if not held.on_corrupt(chunk, source):
            return []
        effects = self._remapping.close({held.object_id})
        for upstream in self._upstreams.values():
            if upstream.order.object_id == held.object_id:
                effects += upstream.close()
                upstream.again()
        log = Log("page doubted", held.reason, {"object_id": held.object_id})
        return [*effects, ResetObject(held.object_id), ReportHolding(held.holding()), log]

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
            effects += [*self._remapping.close({held.object_id}), ResetObject(held.object_id)]
        return [*effects, ReportHolding(held.holding())]

    # ---- landing and installing ------------------------------------------------------------------------------------

    def _on_landed(self, object_id: str, full: Restored | None) -> list[RelayEffect]:
        held = self._objects[object_id]
        held.on_landed()
        landed = [held]
        effects: list[RelayEffect] = []
        if full is not None:
            held.delta = True
            landed.append(Held.restored(full))
            self._objects[full.object_id] = landed[1]
            effects.append(OpenObject(full.object_id))
        news = self._installs.on_landed(held.version)
        for one in landed:
            if news or (full is not None and full.installed):
                one.on_installed(True, "")
            elif one.version < self._installs.current:
                one.reason = f"version {self._installs.current} landed before it"
            effects.append(ReportHolding(one.holding()))
        effects.append(Log("landed", held.state.value, {"version": held.version, "root": held.root}))
        return [*effects, *self._drop_unwanted(held), self._retain()]

    def _on_land_failed(self, event: LandFailed, now: float) -> list[RelayEffect]:
        object_id, fault, detail = event.object_id, event.fault, event.detail
        held = self._objects[object_id]
        held.landing = False
        if self._target(object_id) is None:
            return self._drop_unwanted(held)
        if fault is LocalFault.DELTA:
            held.on_delta_failed(detail, event.part)
            return [ReportHolding(held.holding()), Log("delta failed", detail, {"object_id": object_id})]
        if fault is LocalFault.ROTTEN:  # ChunksDropped has said what is left
            return [Log("rot found", detail, {"object_id": object_id})]
        if fault is not LocalFault.ROOT_MISMATCH:
            return self._on_fault(held, fault, detail, now)
        again = held.on_root_mismatch(detail)
        effects = [*self._remapping.close({object_id}), ResetObject(object_id)] if again else []
        return [*effects, ReportHolding(held.holding()), Log("root mismatch", detail, {"object_id": object_id})]

    def _on_install_ended(self, version: int, ok: bool, reason: str) -> list[RelayEffect]:
        of = [h for h in self._objects.values() if h.landed and h.version == version]
        if not self._installs.on_ended(version, ok) or not of:
            return []
        for held in of:
            held.on_installed(ok, reason)
        outcome = Log("installed" if ok else "install failed", reason or "ok", {"version": version})
        return [*(ReportHolding(held.holding()) for held in of), outcome]

    def _forget_landed(self, object_id: str) -> list[RelayEffect]:
        """The coordinator hears of it: no delta is to begin at what is not here any more."""
        held = self._objects.get(object_id)
        if held is None or not held.landed or self._target(object_id) is not None:
            return []
        del self._objects[object_id]
        return [ReportHolding(Holding.gone(object_id))]

    # ---- leaving, and time -----------------------------------------------------------------------------------------

    def _on_stop_requested(self, now: float) -> list[RelayEffect]:
        if not self._connected or self._leave_by is not None:  # nobody to ask, or told twice
            return self._stop()
        self._leave_by = now + self.config.leave_timeout_s
        return [AskToLeave()]

    def _stop(self) -> list[RelayEffect]:
        self._stopped = True
        fetches = [effect for upstream in self._upstreams.values() for effect in upstream.close()]
        return [*self._remapping.close(), *fetches, Stop()]

    def _on_tick(self, now: float) -> list[RelayEffect]:
        if self._leave_by is not None and now >= self._leave_by:
            return self._stop()
        version = self._installs.overdue(now)
        if version is None:
            return []
        return self._on_install_ended(version, False, f"nobody confirmed within {self.config.install_timeout_s:g} s")

    def _settle(self, now: float) -> list[RelayEffect]:
        """Start whatever is due: fetches, landings, the hook. Doing it twice is doing it once."""
        effects: list[RelayEffect] = []
        for held in self._objects.values():
            target = self._target(held.object_id)
            if target is not None and held.may_land(target, now):
                held.on_landing(target)
                effects.append(Land(held.object_id, target.version, target.root))
        effects += self._remapping.overdue(now)
        for upstream in self._upstreams.values():
            held = self._objects[upstream.order.object_id]
            if self._remapping.waits(held.object_id):
                continue
            lacks = held.lacks(upstream.order.stripes, upstream.order.stripe)
            ending = not lacks and upstream.fetch is not None  # its parent says so next
            effects += upstream.run(ending or (lacks and held.wants_chunks(now)), now)
        install = self._installs.due(now)
        return effects if install is None else [*effects, install]

    def _next_wake(self, now: float) -> float | None:
        times = [u.wake_at for u in self._upstreams.values()]
        times += [
            h.waiting.until_s for h in self._objects.values() if h.waiting is not None and h.waiting.until_s > now
        ]
        times += [self._leave_by, self._installs.deadline, self._remapping.wake_at]
        return min((t for t in times if t is not None), default=None)
