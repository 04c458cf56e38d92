"""Who may be served: at most one live child for each (object, stripe, slot), and only one that the coordinator sent.

Decides on tokens, assignments and the children that are there; knows no network and no clock but the `now` it is given.

    token ─▶ signed, this run, this parent, this object and stripe, the caller is its child?   no ─▶ BAD_TOKEN
               │ yes
             older than what this node was told for the slot (assignment, tokens admitted)?    yes ─▶ STALE
               │ no
             slot free ─────────────────────────────────────────────▶ admitted
             taken, token regular ──────────▶ the present child is EVICTED, admitted
             taken, token a fallback ─▶ present child stalled? yes ─▶ EVICTED, admitted
                                                               no ──▶ BUSY

A fallback is a guest: it does not raise the slot's epoch, so that the child of the assignment takes its place back
whenever it returns. A child that reconnects (same worker, same or newer generation) replaces its own old stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from chappe.errors import BadTokenError
from chappe.hop.stall import STALL_FLOOR_S
from chappe.v1.relay_pb2 import EdgeClaims, EdgeToken, EndReason
from chappe.wire.token import verify

Slot = tuple[str, int, int]
"""(object_id, stripe, slot)"""


@dataclass(frozen=True, slots=True)
class AssignedChild:
    """Whom the assignment puts into a slot."""

    object_id: str
    stripe: int
    slot: int
    worker_id: str
    name: str
    generation: int
    epoch: int


@dataclass(slots=True, eq=False)
class Ticket:
    """A child that is being served. Its stream calls `progress`, and ends when `ended_by` is set."""

    slot: Slot
    child: str
    generation: int
    epoch: int
    fallback: bool
    progressed_s: float
    patience_s: float = 0.0  # how long a message may take it, by what its link has shown
    ended_by: EndReason | None = None
    on_end: Callable[[], None] | None = field(default=None, repr=False)

    def progress(self, now: float) -> None:
        self.progressed_s = now

    def end(self, reason: EndReason) -> None:
        """Ask the stream to end. The first reason stays."""
        if self.ended_by is None:
            self.ended_by = reason
            if self.on_end is not None:
                self.on_end()


@dataclass(frozen=True, slots=True)
class Refusal:
    reason: EndReason
    detail: str


class EdgeGuard:
    """One per node, for all of its objects. `set_run` after Welcome; before it nobody is admitted."""

    def __init__(self, worker_id: str, *, stall_timeout_s: float = STALL_FLOOR_S) -> None:
        self.worker_id = worker_id
        self.stall_timeout_s = stall_timeout_s
        self._run: str | None = None
        self._key = b""
        self._assigned: dict[Slot, AssignedChild] = {}
        self._epochs: dict[Slot, int] = {}  # the newest epoch known, of regular edges
        self._live: dict[Slot, Ticket] = {}
        self._probed: dict[str, int] = {}  # by caller, the epoch of its last probe

    def set_run(self, run: str, token_key: bytes) -> None:
        """What Welcome said. Raises BadTokenError for a key that is not one."""
        if len(token_key) != 32:
            raise BadTokenError(f"the coordinator's token key has {len(token_key)} bytes, not 32")
        self._run, self._key = run, token_key

    def read(self, token: EdgeToken) -> EdgeClaims:
        """The claims of a token of this run. Raises BadTokenError."""
        if self._run is None:
            raise BadTokenError("this node has not joined its coordinator yet")
        claims = verify(self._key, token)
        if claims.run != self._run:
            raise BadTokenError(f"the token is for run {claims.run!r}, not {self._run!r}")
        return claims

    def assign(self, children: Iterable[AssignedChild]) -> None:
        """Replace what is known of the assignment: every child of every object of this node.

        Streams go on: a child that has been moved leaves by itself or is evicted by its successor.
        """
        self._assigned = {(c.object_id, c.stripe, c.slot): c for c in children}
        for slot, child in self._assigned.items():
            self._epochs[slot] = max(child.epoch, self._epochs.get(slot, 0))

    def forget(self, object_id: str) -> None:
        """The object is gone from this node and will not come back."""
        for slot in [s for s in self._epochs if s[0] == object_id]:
            del self._epochs[slot]
        for slot in [s for s in self._assigned if s[0] == object_id]:
            del self._assigned[slot]

    def admit(
        self, token: EdgeToken, object_id: str, stripe: int, now: float, peer_name: str | None = None
    ) -> Ticket | Refusal:
        """Take a child in, ending the one that it replaces, or say why not.

        `peer_name` is the name in the caller's certificate, where there is TLS.
        """
        if self._run is None:
            return Refusal(EndReason.END_REASON_UNKNOWN_OBJECT, "this node has not joined its coordinator yet")
        try:
            claims = self.read(token)
        except BadTokenError as error:
            return Refusal(EndReason.END_REASON_BAD_TOKEN, str(error))
        slot = (object_id, stripe, claims.slot)
        refusal = self._check_claims(claims, object_id, stripe, peer_name) or self._check_epoch(claims, slot)
        if refusal is not None:
            return refusal
        present = self._live.get(slot)
        if present is not None:
            if (refusal := self._check_present(claims, present, now)) is not None:
                return refusal
            present.end(EndReason.END_REASON_EVICTED)
        if not claims.fallback:
            self._epochs[slot] = max(claims.epoch, self._epochs.get(slot, 0))
        ticket = Ticket(slot, claims.child, claims.child_generation, claims.epoch, claims.fallback, now)
        self._live[slot] = ticket
        return ticket

    def release(self, ticket: Ticket) -> None:
        """The stream of this ticket has ended."""
        if self._live.get(ticket.slot) is ticket:
            del self._live[ticket.slot]

    def children(self) -> list[Ticket]:
        """The children that are being served."""
        return list(self._live.values())

    def check_probe(self, token: EdgeToken) -> None:
        """Raises BadTokenError for a caller that the coordinator did not send to measure the link to this node.

        A token is good once: its epoch must be newer than that of every probe of this caller before.
        """
        claims = self.read(token)
        if claims.object_id or claims.parent != self.worker_id:
            raise BadTokenError("the token is not for a probe of this node")
        if claims.epoch <= self._probed.get(claims.child, -1):
            raise BadTokenError("this probe has been made before")
        self._probed[claims.child] = claims.epoch

    def end_all(self, reason: EndReason) -> None:
        """Ask every stream to end, on the way out."""
        for ticket in self.children():
            ticket.end(reason)

    def _check_claims(self, claims: EdgeClaims, object_id: str, stripe: int, peer_name: str | None) -> Refusal | None:
        expected = {
            "parent": (claims.parent, self.worker_id),
            "object": (claims.object_id, object_id),
            "stripe": (claims.stripe, stripe),
        }
        for what, (claimed, actual) in expected.items():
            if claimed != actual:
                return Refusal(EndReason.END_REASON_BAD_TOKEN, f"the token is for {what} {claimed!r}, not {actual!r}")
        known = self._assigned.get((object_id, stripe, claims.slot))
        if peer_name is not None and known is not None and known.worker_id == claims.child and known.name != peer_name:
            return Refusal(
                EndReason.END_REASON_BAD_TOKEN, f"the token is for {known.name!r}, the certificate for {peer_name!r}"
            )
        return None

    def _check_epoch(self, claims: EdgeClaims, slot: Slot) -> Refusal | None:
        newest = self._epochs.get(slot, 0)
        if claims.epoch < newest:
            return Refusal(EndReason.END_REASON_STALE, f"the token's epoch is {claims.epoch}, the slot's {newest}")
        known = self._assigned.get(slot)
        if known is not None and known.worker_id == claims.child and claims.child_generation < known.generation:
            return Refusal(EndReason.END_REASON_STALE, "the child has been started again since")
        return None

    def _check_present(self, claims: EdgeClaims, present: Ticket, now: float) -> Refusal | None:
        if present.child == claims.child:
            if claims.child_generation < present.generation:
                return Refusal(EndReason.END_REASON_STALE, "the child has been started again since")
            return None
        stalled_s = now - present.progressed_s
        if claims.fallback and stalled_s < max(self.stall_timeout_s, present.patience_s):
            return Refusal(EndReason.END_REASON_BUSY, f"another child made progress {stalled_s:.1f} s ago")
        return None
