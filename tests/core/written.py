"""A database of the fleet's rows, as the coordinator keeps it: what the effects of each event say is written."""

from __future__ import annotations

import json
from collections.abc import Sequence

from chappe.core import effects as fx
from chappe.core.effects import Effect
from chappe.core.rows import Json, RowKey, Rows, assemble
from chappe.core.state import FleetState


class Written:
    """`state()` is what a coordinator finds that starts now."""

    def __init__(self) -> None:
        self.workers: dict[str, str] = {}
        self.publications: dict[str, dict[RowKey, str]] = {}
        self.reserved_epoch = 0
        self.rows_written = 0
        self._rows: dict[str, Rows] = {}

    def take(self, effects: Sequence[Effect], state: FleetState) -> None:
        """Write, and compare what the rows of a publication make together with the whole of it."""
        for effect in effects:
            match effect:
                case fx.PersistWorker(key):
                    self.workers[key] = json.dumps(state.workers[key].to_json())
                case fx.ForgetWorker(key):
                    self.workers.pop(key, None)
                case fx.PersistEpoch(reserved):
                    self.reserved_epoch = reserved
                case fx.PersistPublication(key):
                    self._write(key, state)

    def _write(self, object_id: str, state: FleetState) -> None:
        publication = state.publications.get(object_id)
        if publication is None:
            self.publications.pop(object_id, None)
            self._rows.pop(object_id, None)
            return
        rows = self.publications.setdefault(object_id, {})
        changes = self._rows.setdefault(object_id, Rows()).changes(publication)
        self.rows_written += len(changes)
        for key, row in changes.items():
            if row is None:
                del rows[key]
            else:
                rows[key] = json.dumps(row)
        assert in_any_order(self.document(object_id)) == in_any_order(json.loads(json.dumps(publication.to_json())))

    def document(self, object_id: str) -> Json:
        return assemble({key: json.loads(row) for key, row in self.publications[object_id].items()})

    def state(self, saved_s: float = 0.0) -> FleetState:
        workers = [json.loads(row) for row in self.workers.values()]
        publications = [self.document(key) for key in self.publications]
        return FleetState.from_rows(workers, publications, self.reserved_epoch, saved_s)

    def restarted(self, state: FleetState) -> None:
        """What is written is known to the next one as `state`: that alone is compared with from now on."""
        self._rows = {key: Rows() for key in state.publications}
        for key, publication in state.publications.items():
            self._rows[key].changes(publication)


def in_any_order(document: Json) -> Json:
    """Edges are a set of rows."""
    return {**document, "edges": sorted(document["edges"])}
