"""A publication as rows, so that what is written of it is what has changed of it.

    head            phase, root, fractions, open cases: all that has no key of its own
    chain  N        the N-th of the layout: stripe, slot, members from the head
    edge   N ID     stripe N: the epochs in force for one child, of its edge and of its fallbacks
    member ID       how far one worker is

`Rows` remembers what it gave out last and compares. Nothing has to be marked when a publication changes, so nothing
can be forgotten; what is compared are references and small tuples, and only what differs is made into a document.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any, TypeVar

from chappe.core.edges import Issued, Key
from chappe.core.publication import MEMBER_FIELDS, Publication

Json = dict[str, Any]
RowKey = tuple[str, str]
"""Kind and key. Together with the object's id they name a row."""

HEAD: RowKey = ("head", "")

K = TypeVar("K")
V = TypeVar("V")
_Chain = tuple[int, int, bool, tuple[str, ...]]
_member_values = attrgetter(*MEMBER_FIELDS)


class Rows:
    """The rows of one publication as they were when they were last asked for."""

    def __init__(self) -> None:
        self._head: Json = {}
        self._chains: list[_Chain] = []
        self._main: dict[Key, Issued] = {}
        self._fallback: dict[Key, Mapping[str, Issued]] = {}
        self._members: dict[str, tuple[Any, ...]] = {}

    def changes(self, publication: Publication) -> dict[RowKey, Json | None]:
        """What differs from the last time; None for a row that is no more."""
        changed: dict[RowKey, Json | None] = {}
        head = publication.head_json()
        if head != self._head:
            self._head = changed[HEAD] = head
        self._chains_changed(publication, changed)
        self._edges_changed(publication, changed)
        self._members_changed(publication, changed)
        return changed

    def _chains_changed(self, publication: Publication, changed: dict[RowKey, Json | None]) -> None:
        before = self._chains
        now = [(c.stripe, c.slot, c.rooted, tuple(c.members)) for c in publication.layout.chains]
        for i in range(len(now), len(before)):
            changed["chain", str(i)] = None
        for i, (stripe, slot, rooted, members) in enumerate(now):
            if i >= len(before) or before[i] != now[i]:
                row = {"stripe": stripe, "slot": slot, "members": list(members), "rooted": rooted}
                changed["chain", str(i)] = row
        self._chains = now

    def _edges_changed(self, publication: Publication, changed: dict[RowKey, Json | None]) -> None:
        book = publication.edges
        keys = _differing(self._main, book.main) | _differing(self._fallback, book.fallback)
        for stripe, child in sorted(keys):
            rows = book.rows_of((stripe, child))
            changed["edge", f"{stripe} {child}"] = {"issued": rows} if rows else None
        if keys:
            self._main, self._fallback = dict(book.main), dict(book.fallback)

    def _members_changed(self, publication: Publication, changed: dict[RowKey, Json | None]) -> None:
        before, members = self._members, publication.members
        now = {worker_id: _member_values(member) for worker_id, member in members.items()}
        for worker_id in _differing(before, now):
            changed["member", worker_id] = members[worker_id].to_json() if worker_id in members else None
        self._members = now


def _differing(before: Mapping[K, V], now: Mapping[K, V]) -> set[K]:
    if before == now:
        return set()
    get = before.get
    differ = {key for key, value in now.items() if (old := get(key)) is not value and old != value}
    return differ | (before.keys() - now.keys())


def assemble(rows: Mapping[RowKey, Json]) -> Json:
    """The document that `Publication.from_json` reads. Raises ValueError for rows that are not a publication."""
    try:
        chains = sorted((int(key), row) for (kind, key), row in rows.items() if kind == "chain")
        return {
            **rows[HEAD],
            "layout": [row for _, row in chains],
            "edges": [edge for (kind, _), row in rows.items() if kind == "edge" for edge in row["issued"]],
            "members": {key: row for (kind, key), row in rows.items() if kind == "member"},
        }
    except (KeyError, ValueError, TypeError) as error:
        raise ValueError(f"rows that are no publication: {error!r}") from error


def split(publications: Iterable[Json]) -> dict[str, dict[RowKey, Json]]:
    """Whole documents, as they were kept before there were rows, as rows by object."""
    found = {}
    for document in publications:
        publication = Publication.from_json(_today(document))
        found[publication.object_id] = {key: row for key, row in Rows().changes(publication).items() if row is not None}
    return found


def _today(document: Json) -> Json:
    """A version had one delta then, named by two fields of the main publication."""
    rest = {key: value for key, value in document.items() if key != "delta_id"}
    lane = document.get("delta_id", "")
    if lane and not document.get("main"):
        rest |= {"deltas": {lane: document["base_root"]}, "base_root": ""}
    return rest
