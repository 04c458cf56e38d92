"""Whose a database on a server is, for a coordinator that comes back to it after its connection, and lock, were lost.

    claim ── owner "A 0" ──▶ renew "A 1" ──▶ renew "A 2" ──▶ …      each in the transaction of the write it belongs to

One row says who was the last to begin here, and how often it has written. A lock only says that nobody else is here
*now*: a coordinator that came and went while the connection was down has handed out epochs and versions of its own, and
a server that was put back to a backup has forgotten some of ours. In both cases what is in memory must not be written.
The row also fences writes where the lock means nothing: behind a pooler that gives each transaction another connection
(PgBouncer with pool_mode = transaction) two coordinators may hold it, and the older one ends with its next write.
"""

from __future__ import annotations

import uuid

import sqlalchemy as sa

from chappe.errors import StoreCorruptError, StoreLockedError

_KEY = "owner"


class Ownership:
    """Of one coordinator process. `meta` has the columns `key` and `value`."""

    def __init__(self, meta: sa.Table, shown: str) -> None:
        self._meta = meta
        self._shown = shown
        self._name = uuid.uuid4().hex
        self._written = 0

    def claim(self) -> tuple[str, str]:
        """The row to put, with the lock held."""
        return _KEY, self._value(0)

    def renew(self, connection: sa.Connection) -> None:
        """Part of a write's transaction. Raises StoreLockedError, StoreCorruptError."""
        row = self._meta.c
        ours = sa.update(self._meta).where(row.key == _KEY, row.value.in_(self._possible()))
        if connection.execute(ours.values(value=self._value(self._written + 1))).rowcount != 1:
            self.confirm(connection)

    def written(self) -> None:
        """The transaction has been committed, for sure."""
        self._written += 1

    def confirm(self, connection: sa.Connection) -> None:
        """Raises StoreLockedError when another has been here, StoreCorruptError when what was written is not there."""
        select = sa.select(self._meta.c.value).where(self._meta.c.key == _KEY)
        found = str(connection.execute(select).scalar() or "")
        if found in self._possible():
            return
        if found.partition(" ")[0] == self._name or not found:
            raise StoreCorruptError(
                f"--state {self._shown}: what was written to it is not there any more (a backup, or a replica that was "
                "behind?): what is in memory does not fit it"
            )
        raise StoreLockedError(f"--state {self._shown}: another coordinator has taken it over meanwhile")

    def _possible(self) -> tuple[str, str]:
        """Of a write whose answer was lost nobody knows whether it is there."""
        return self._value(self._written), self._value(self._written + 1)

    def _value(self, written: int) -> str:
        return f"{self._name} {written}"
