"""The whole desired state of a node, derived, and sent when it differs from what was sent last.

Nothing is decided here: targets follow from publications and members, edges from the layouts.
"""

from __future__ import annotations

from collections.abc import Callable

from chappe.core.context import Context
from chappe.core.edges import EdgeMaker
from chappe.core.effects import Assign, Edge, Target
from chappe.core.events import Role
from chappe.core.publication import ENDED, Publication
from chappe.core.rates import hop_rate
from chappe.core.workers import Worker

Content = tuple[tuple[Target, ...], tuple[Edge, ...], tuple[int, ...], tuple[str, str]]


class Assignments:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._sent: dict[str, tuple[int, Content, float]] = {}  # epoch, content, when

    def forget(self, worker_id: str) -> None:
        """A new stream, or none: what was sent on the old one does not count."""
        self._sent.pop(worker_id, None)

    def sent(self, worker_id: str) -> tuple[int, float] | None:
        """Epoch and time of the assignment in force."""
        sent = self._sent.get(worker_id)
        return None if sent is None else (sent[0], sent[2])

    def content(self, worker_id: str) -> tuple[tuple[Target, ...], tuple[Edge, ...]] | None:
        sent = self._sent.get(worker_id)
        return None if sent is None else sent[1][:2]

    def flush(self) -> None:
        """Send what differs: sources first, then chain by chain from the head: parents know before children ask."""
        context = self._context
        workers = [w for w in map(context.state.workers.get, context.dirty) if w is not None and w.connected]
        context.dirty.clear()
        newest_first = sorted(context.state.publications.values(), key=lambda p: -p.version)
        keep = context.state.keep_versions
        for worker in sorted(workers, key=lambda w: self._order(w, newest_first)):
            content = (*self._derive(worker, newest_first), keep, self._duty(worker))
            sent = self._sent.get(worker.worker_id)
            if sent is not None and sent[1] == content:
                continue
            epoch = context.next_epoch()
            self._sent[worker.worker_id] = (epoch, content, context.now)
            targets, edges, keep_versions, duty = content
            assert worker.session is not None
            context.send(
                Assign(worker.worker_id, worker.session, worker.generation, epoch, targets, edges, keep_versions, *duty)
            )

    def _duty(self, worker: Worker) -> tuple[str, str]:
        """Whether it is to generate, and why; empty where nobody decides that."""
        training = self._context.config.training
        if training is None or not training.activation or worker.role is not Role.RELAY:
            return "", ""
        return "standby" if worker.standby else "active", worker.duty_reason

    def _order(self, worker: Worker, publications: list[Publication]) -> tuple[int, int, int, str]:
        if worker.role is Role.ORIGIN:
            return (0, 0, 0, worker.name)
        for publication in publications:
            if worker.worker_id in publication.layout:
                place = publication.layout.places(worker.worker_id)[0]
                return (1, place.chain.slot, place.position, worker.name)
        return (2, 0, 0, worker.name)

    def _expected(self, publication: Publication) -> Callable[[Worker, Worker, int], float]:
        """Of a hop with nothing beside it, at most; in a stripe, what the plan gives it of links that are shared."""
        assumed, now = self._context.config.assumed_bytes_per_s, self._context.now
        planned = publication.stripe_bytes_per_s

        def expected(parent: Worker, child: Worker, streams: int) -> float:
            return planned or hop_rate(parent, child, streams, assumed, now)

        return expected

    def _source(self, publication: Publication) -> str:
        """The origin that feeds its chains, if any does."""
        spared = publication.source_failed or self._context.state.spares_origin(publication)
        return "" if spared else publication.origin_id

    def _derive(self, worker: Worker, publications: list[Publication]) -> tuple[tuple[Target, ...], tuple[Edge, ...]]:
        targets: list[Target] = []
        edges: list[Edge] = []
        for publication in publications:
            maker = EdgeMaker(
                publication.object_id,
                publication.layout,
                publication.edges,
                self._context.state.workers,
                self._source(publication),
                self._context.next_epoch,
                self._expected(publication),
                publication.stripes,
            )
            if worker.role is Role.ORIGIN:
                if publication.origin_id != worker.worker_id or not wanted_of_origin(publication):
                    continue
                if self._source(publication):
                    edges.extend(maker.of_origin(worker))
            else:
                if not wanted_of_relay(publication, worker.worker_id):
                    continue
                edges.extend(maker.of_relay(worker))
            targets.append(target_of(publication))
        return tuple(targets), tuple(edges)


def wanted_of_origin(publication: Publication) -> bool:
    return publication.phase not in ENDED and not publication.retired and not publication.source_failed


def wanted_of_relay(publication: Publication, worker_id: str) -> bool:
    """Also without a place (absent, draining, leaving): what it holds of the object is worth keeping."""
    member = publication.members.get(worker_id)
    if member is None or not publication.active or member.superseded or member.deferred:
        return False
    return not member.via or worker_id in publication.layout  # one that has landed it feeds others


def target_of(publication: Publication) -> Target:
    p = publication
    return Target(p.object_id, p.version, p.root, p.kind, p.payload_bytes, p.snapshot_bytes)
