"""One publication: its phase, whom it targets, how far each got, and when each fraction was reached.

It keeps count; which worker stands where is the layout's, what to do about it the fleet machine's.

    opening ──offer──▶ open ──every living targeted worker installed──▶ closed
       │                │ ▲
       │                │ └── the version that superseded it came to nothing
       │                ├── a newer version took a host from it ──▶ superseded
       └────────────────┴── source lost or changed ──▶ failed;  cancel ──▶ cancelled

Targeted is every worker that is given an object by the publication while it is open: those present at the offer, and
those who join before it closes. A lost one stays targeted for its lease, then leaves the denominator; back before
closing it counts again. Who joins later is served and not counted. Closed counts do not change any more.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from chappe.core.blame import Case
from chappe.core.chain import Layout
from chappe.core.edges import EdgeBook
from chappe.core.events import ObjectState, Topology
from chappe.core.grounds import Grounds
from chappe.core.reasons import LostReason
from chappe.core.stripemap import PLAIN, StripeMap

FRACTIONS = {"0.5": 0.5, "0.9": 0.9, "1.0": 1.0}
_EPSILON = 1e-9  # fractions are quotients of small integers


class Phase(StrEnum):
    OPENING = "opening"
    OPEN = "open"
    CLOSED = "closed"
    CANCELLED = "cancelled"
    FAILED = "failed"
    SUPERSEDED = "superseded"


ENDED = frozenset({Phase.CANCELLED, Phase.FAILED})
LIVE = frozenset({Phase.OPENING, Phase.OPEN})


LEVELS = {ObjectState.RECEIVING: 0, ObjectState.RECEIVED: 1, ObjectState.VERIFIED: 2, ObjectState.INSTALLED: 3}
RECEIVED, VERIFIED, INSTALLED = 1, 2, 3


@dataclass(slots=True)
class Member:
    """A worker as one publication sees it. `level` counts received 1, verified 2, installed 3."""

    name: str
    targeted: bool = True
    level: int = 0
    lost: LostReason | None = None
    failed: str = ""  # why it will not get further by itself
    deferred: bool = False  # finishes an older version first, is placed then
    superseded: bool = False  # was taken away by a newer version
    why: str = ""  # its placement, for a person
    via: str = ""  # gets the version as this other object: no place here (see `chappe.core.lanes`)
    full_only: bool = False  # could not take a delta to this version

    @property
    def counted(self) -> bool:
        return self.targeted and self.lost is None

    def to_json(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in MEMBER_FIELDS}
        return values | {"lost": None if self.lost is None else self.lost.value}


MEMBER_FIELDS = tuple(one.name for one in fields(Member))


@dataclass(slots=True)
class Publication:
    object_id: str
    version: int
    origin_id: str
    until: float
    topology: Topology
    chains_wanted: int
    chunk_bytes: int
    snapshot_bytes: int
    started_s: float  # the publish() call, on the coordinator's clock
    phase: Phase = Phase.OPENING
    reason: str = ""
    kind: str = "full"
    payload_bytes: int = 0
    chunks_total: int = 0
    open_end: bool = False  # of a lane: it is still being made; payload_bytes and chunks_total are an estimate
    root: str = ""
    floor_s: float | None = None
    floor_source: str = ""  # what it stands on: measured, declared, assumed
    ended_s: float | None = None
    superseded_by: int = 0
    origin_out: bool = False
    source_failed: bool = False  # the origin is there and cannot serve this object any more
    finished: bool = False  # `until` is reached and nobody needs the origin any more
    retired: bool = False  # a newer version has taken over: nobody is served this one
    stripes: StripeMap = PLAIN  # which chunks are whose; more than one only where it was asked for and is worth it
    stripe_bytes_per_s: float = 0.0  # of a stripe of weight 1, as planned; 0 with one stripe
    grounds: Grounds = field(default_factory=Grounds)
    streams_max: int = 0  # of the origin, in a stripe: the chains that were planned; 0 where each worker has its own
    main: str = ""  # of a lane: the publication that speaks for its version
    deltas: dict[str, str] = field(
        default_factory=dict
    )  # of a main: its lanes' objects, promised or offered, and bases
    base_root: str = ""  # of a lane: where the delta begins
    delta_only: bool = False  # of a main: whoever holds no base is not waited for
    spare_origin: bool = False  # of a main: its origin is to serve the deltas only (see `FleetState.spares_origin`)
    payload_reason: str = ""  # why there is a delta, or none
    changed_elements: int = 0  # of a lane: of the compared ones
    compared_elements: int = 0
    alarm: str = ""  # what is unusual about the delta
    t_train_s: float = 0.0  # a training step, as the trainer told; 0: it did not
    members: dict[str, Member] = field(default_factory=dict)
    t_bcast: dict[str, float] = field(default_factory=dict)
    layout: Layout = field(default_factory=Layout)
    edges: EdgeBook = field(default_factory=EdgeBook)
    cases: dict[str, Case] = field(default_factory=dict)  # open ones about slow hops, by the child that is watched
    watchers: dict[int, float] = field(default_factory=dict)  # request -> until; not kept over a restart
    _counts: list[int] = field(default_factory=lambda: [0, 0, 0, 0])  # counted members at or above each level
    _failed: int = 0

    # ---- counting ----

    @property
    def targeted(self) -> int:
        return self._counts[0]

    @property
    def received(self) -> int:
        return self._counts[RECEIVED]

    @property
    def verified(self) -> int:
        return self._counts[VERIFIED]

    @property
    def installed(self) -> int:
        return self._counts[INSTALLED]

    def fraction(self, level: int) -> float:
        return self._counts[level] / self.targeted if self.targeted else 0.0

    @property
    def burned(self) -> bool:
        return self.root != ""

    @property
    def active(self) -> bool:
        """Workers are given this object."""
        return self.phase not in ENDED and self.phase is not Phase.OPENING and not self.retired

    @property
    def settled(self) -> bool:
        """Nobody counted is on the way any more: each has installed or will not by itself."""
        return self.targeted > 0 and self.installed + self._failed == self.targeted

    @property
    def lost(self) -> list[str]:
        return [m.name for m in self.members.values() if m.lost is not None and m.targeted]

    def reached(self, fraction: float) -> bool:
        return self.targeted > 0 and self.fraction(INSTALLED) >= fraction - _EPSILON

    def _tally(self, member: Member, sign: int) -> None:
        if member.counted:
            for level in range(member.level + 1):
                self._counts[level] += sign
            self._failed += sign * (member.failed != "" and member.level < INSTALLED)

    def recount(self) -> tuple[list[int], int]:
        """The counters from scratch, for a restart and for the invariants."""
        counts, failed = [0, 0, 0, 0], 0
        for member in self.members.values():
            if member.counted:
                for level in range(member.level + 1):
                    counts[level] += 1
                failed += member.failed != "" and member.level < INSTALLED
        return counts, failed

    @property
    def counters(self) -> tuple[list[int], int]:
        return list(self._counts), self._failed

    # ---- members ----

    def enlist(self, worker_id: str, member: Member) -> None:
        if worker_id in self.members:
            self._tally(self.members[worker_id], -1)
        self.members[worker_id] = member
        self._tally(member, +1)

    def expel(self, worker_id: str) -> None:
        """It is no member any more: the version comes to it as another object."""
        member = self.members.pop(worker_id, None)
        if member is not None:
            self._tally(member, -1)

    def advance(self, worker_id: str, level: int, failed: str = "", *, afresh: bool = False) -> bool:
        """Record how far a worker is; levels only rise unless it starts `afresh`. True when anything changed."""
        member = self.members[worker_id]
        level = level if afresh else max(level, member.level)
        if (level, failed) == (member.level, member.failed):
            return False
        self._tally(member, -1)
        member.level, member.failed = level, failed
        self._tally(member, +1)
        return True

    def lose(self, worker_id: str, reason: LostReason) -> bool:
        """Take a worker out of the denominator. A closed publication keeps what it counted."""
        member = self.members.get(worker_id)
        if member is None or member.lost is not None or self.phase is not Phase.OPEN:
            return False
        self._tally(member, -1)
        member.lost = reason
        return True

    def regain(self, worker_id: str) -> bool:
        member = self.members.get(worker_id)
        if member is None or member.lost is None or self.phase is not Phase.OPEN:
            return False
        member.lost = None
        self._tally(member, +1)
        return True

    def record_fractions(self, now: float) -> list[str]:
        """Note the time for every fraction that has been reached and not noted; returns those that are new."""
        new = [key for key, f in FRACTIONS.items() if key not in self.t_bcast and self.reached(f)]
        for key in new:
            self.t_bcast[key] = max(0.0, now - self.started_s)
        return new

    def end(self, phase: Phase, reason: str, now: float) -> None:
        self.phase, self.reason, self.ended_s = phase, reason, now

    def unretire(self) -> None:
        """Workers are served it again. Its origin was told to let go of it: only a new offer makes it a source."""
        if self.retired:
            self.retired = False
            self.source_failed = self.origin_out = True

    # ---- keeping ----

    def head_json(self) -> dict[str, Any]:
        """Without what grows with the fleet (see `chappe.core.rows`)."""
        return {
            **{name: getattr(self, name) for name in HEAD_FIELDS},
            "topology": self.topology.value,
            "phase": self.phase.value,
            "stripes": [list(self.stripes.weights), self.stripes.run],
            "grounds": self.grounds.to_json(),
            "deltas": dict(self.deltas),
            "t_bcast": dict(self.t_bcast),
            "cases": [case.to_json() for case in self.cases.values()],
        }

    def to_json(self) -> dict[str, Any]:
        return {
            **self.head_json(),
            "layout": self.layout.to_json(),
            "edges": self.edges.to_json(),
            "members": {worker_id: member.to_json() for worker_id, member in self.members.items()},
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Publication:
        rest = {
            "topology": Topology(data["topology"]),
            "phase": Phase(data["phase"]),
            "stripes": _stripes_from_json(data.get("stripes")),
            "grounds": Grounds(**data.get("grounds", {})),
            "layout": Layout.from_json(data["layout"]),
            "edges": EdgeBook.from_json(data["edges"]),
            "cases": {case.watched: case for case in map(Case.from_json, data.get("cases", []))},
            "members": {worker_id: _member_from_json(m) for worker_id, m in data["members"].items()},
        }
        publication = cls(**{**data, **rest})
        publication._counts, publication._failed = publication.recount()
        return publication


_ELSEWHERE = frozenset({"layout", "edges", "members", "watchers", "_counts", "_failed"})
HEAD_FIELDS = tuple(one.name for one in fields(Publication) if one.name not in _ELSEWHERE)


def _stripes_from_json(data: list[Any] | None) -> StripeMap:
    return PLAIN if data is None else StripeMap(tuple(data[0]), data[1])


def _member_from_json(data: dict[str, Any]) -> Member:
    return Member(**{**data, "lost": None if data["lost"] is None else LostReason(data["lost"])})
