"""The fleet as the coordinator's shell needs it: an event door, rows to store, and what people are shown.

An adapter and nothing more: decisions are in `chappe.core.fleet`, what is seen is in `chappe.core.status`; here both
are turned into documents and messages.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from chappe.coordinator.runclock import RunClock
from chappe.coordinator.state import Stored
from chappe.core import status, views
from chappe.core.effects import Effect
from chappe.core.events import Event
from chappe.core.fleet import Fleet
from chappe.core.rows import Json, RowKey, Rows, assemble
from chappe.core.state import FleetConfig, FleetState
from chappe.core.training_view import TrainingView
from chappe.errors import StoreCorruptError
from chappe.v1 import coordinator_pb2 as pb

_RELAY_FIELDS = tuple(field.name for field in fields(views.RelayView))
_ORIGIN_FIELDS = tuple(field.name for field in fields(views.OriginView))
_TRAINING_FIELDS = tuple(field.name for field in fields(TrainingView))
_NOT_PLAIN = ("object_id", "chains", "fractions", "payloads")
_PUBLICATION_FIELDS = tuple(f.name for f in fields(views.PublicationView) if f.name not in _NOT_PLAIN)
_PAYLOAD_FIELDS = tuple(field.name for field in fields(views.PayloadView))


class FleetMachine:
    """Implements the runner's `Machine` and the service's `Views` over one Fleet."""

    def __init__(self, config: FleetConfig, stored: Stored, clock: RunClock) -> None:
        self.config = config
        self._clock = clock
        try:
            publications = [assemble(rows) for rows in stored.publications.values()]
        except ValueError as error:
            raise StoreCorruptError(f"the coordinator's state is damaged: {error}") from error
        state = FleetState.from_rows(stored.workers.values(), publications, stored.epoch_reserved, clock.saved_s)
        self._written = {key: Rows() for key in state.publications}
        for key, publication in state.publications.items():
            self._written[key].changes(publication)
        self._fleet = Fleet(config, state)

    @property
    def state(self) -> FleetState:
        """To read from; only `handle` may change it."""
        return self._fleet.state

    def handle(self, event: Event, now: float) -> list[Effect]:
        return self._fleet.handle(event, now)

    def worker_document(self, worker_id: str) -> Json | None:
        worker = self.state.workers.get(worker_id)
        return None if worker is None else worker.to_json()

    def publication_rows(self, object_id: str) -> dict[RowKey, Json | None] | None:
        publication = self.state.publications.get(object_id)
        if publication is None:
            self._written.pop(object_id, None)
            return None
        return self._written.setdefault(object_id, Rows()).changes(publication)

    # ---- what people see -------------------------------------------------------------------------------------------

    def status_view(self) -> views.StatusView:
        return status.status_view(self.state, self.config, self._clock.now())

    def status(self) -> pb.Status:
        view = self.status_view()
        return pb.Status(
            run=view.run,
            relays=[pb.RelayStatus(**_values(relay, _RELAY_FIELDS)) for relay in view.relays],
            publications=[encode_publication(publication) for publication in view.publications],
            origins=[pb.OriginStatus(**_values(origin, _ORIGIN_FIELDS)) for origin in view.origins],
            training=None if view.training is None else pb.TrainingStatus(**_values(view.training, _TRAINING_FIELDS)),
        )

    def publication(self, object_id: str) -> pb.PublicationStatus | None:
        publication = self.state.publications.get(object_id)
        if publication is None:
            return None
        return encode_publication(status.publication_view(self.state, publication, self.config.run, self._clock.now()))

    def publication_of_version(self, version: int) -> pb.PublicationStatus | None:
        """The one that made it a version; one that was aborted before its root had none."""
        for publication in self.state.mains:
            if publication.version == version and publication.root:
                return self.publication(publication.object_id)
        return None


def encode_publication(view: views.PublicationView) -> pb.PublicationStatus:
    fractions = view.fractions
    return pb.PublicationStatus(
        chains=[pb.Chain(names=chain.names, stripe=chain.stripe) for chain in view.chains],
        fractions=pb.Fractions(received=fractions.received, verified=fractions.verified, installed=fractions.installed),
        payloads=[pb.ObjectStatus(**_values(payload, _PAYLOAD_FIELDS)) for payload in view.payloads],
        **_values(view, _PUBLICATION_FIELDS),
    )


def _values(view: object, names: tuple[str, ...]) -> dict[str, Any]:
    """The views mirror the messages. `dataclasses.asdict` would copy every value, and this is hot."""
    return {name: getattr(view, name) for name in names}
