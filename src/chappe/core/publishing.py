"""Publications as their caller asks for them.

Decides which versions may be asked for, and what is promised to whom: a delta, the compressed snapshot or all of it.
What follows is `offering`'s (chains, the root) and `ending`'s. Phases and their diagram are in `publication`; who
yields to whom is `supersede`'s, how far workers are is `progress`'s.
"""

from __future__ import annotations

from chappe.core.bases import NOTHING, promised, takers
from chappe.core.context import Context
from chappe.core.effects import PublishAccepted, PublishAlready, RequestRefused
from chappe.core.ending import Ending
from chappe.core.events import Compressed, DeltaFrom, Payload, PublishRequested, PublishWatcherLeft
from chappe.core.lanes import of_version
from chappe.core.laying import Laying
from chappe.core.publication import ENDED, Phase, Publication
from chappe.core.versions import Verdict, judge, next_version
from chappe.planning.compression import compression_gain
from chappe.planning.topology import Link


class Publishing:
    def __init__(
        self,
        context: Context,
        laying: Laying,
        ending: Ending,
    ) -> None:
        self._context = context
        self._laying = laying
        self._ending = ending

    def requested(self, event: PublishRequested) -> None:
        state = self._context.state
        known = state.publications.get(event.object_id)
        if known is not None and known.origin_id == event.origin_id:
            self._attach(known, event)
            return
        verdict = judge(state, event, self._context.config.lanes_max, self._context.now)
        if verdict.already is not None:
            self._context.send(PublishAlready(event.request, verdict.already.version, verdict.already.root))
            return
        if verdict.resume is not None:
            self._resume(verdict.resume, event)
            return
        if verdict.refusal is not None:
            kind, message = verdict.refusal
            self._context.send(RequestRefused(event.request, kind, message))
            self._context.log("publish_refused", message, version=event.version)
            return
        self._accept(event, verdict)

    def _attach(self, known: Publication, event: PublishRequested) -> None:
        known.watchers[event.request] = event.until
        self._send_accepted(known, event.request)
        self._context.changed[known.object_id] = None

    def _resume(self, waiting: Publication, event: PublishRequested) -> None:
        """Its publisher is gone for good, another process has the bytes: the object gets a new origin, which is out
        until it has offered it with the root that was announced."""
        waiting.origin_id, waiting.source_failed = event.origin_id, True
        waiting.watchers[event.request] = event.until
        self._context.send(
            PublishAccepted(event.request, waiting.version, waiting.chunk_bytes, waiting.object_id, waiting.root)
        )
        self._context.touch_all(waiting)
        self._context.log("resumed", "", version=waiting.version, origin=self._context.name(event.origin_id))

    def _accept(self, event: PublishRequested, verdict: Verdict) -> None:
        for stale in verdict.abandoned:
            self._ending.end(stale, Phase.FAILED, "its publisher went away, and the version was asked for again")
        version = event.version or next_version(self._context.state)
        publication = Publication(
            object_id=event.object_id,
            version=version,
            origin_id=event.origin_id,
            until=event.until,
            topology=event.topology,
            chains_wanted=event.chains,
            chunk_bytes=self._laying.chunk_bytes(event),
            snapshot_bytes=event.snapshot_bytes,
            started_s=self._context.now - event.elapsed_s,
            watchers={event.request: event.until},
            t_train_s=event.t_train_s,
        )
        publication.delta_only = publication.spare_origin = event.payload is Payload.DELTA
        self._promise(publication, event)
        self._context.state.publications[event.object_id] = publication
        self._prune()
        self._context.update(publication)
        self._send_accepted(publication, event.request)
        self._context.log("accepted", "", version=version, origin=self._context.name(event.origin_id))

    def _send_accepted(self, publication: Publication, request: int) -> None:
        bases = tuple(root for root in publication.deltas.values() if root != NOTHING)
        compressed = NOTHING in publication.deltas.values()
        self._context.send(
            PublishAccepted(
                request, publication.version, publication.chunk_bytes, base_roots=bases, compressed=compressed
            )
        )

    def _promise(self, publication: Publication, event: PublishRequested) -> None:
        """Whoever proves a base that the publisher can begin at waits for its delta, the others for the compressed
        snapshot where that is faster."""
        state, most, now = self._context.state, self._context.config.lanes_max, self._context.now
        publication.deltas = promised(state, event.deltas, most, now)
        self._say_deltas(publication, event)
        ready = {worker.worker_id for worker in takers(state, publication.deltas.values())}
        others = [link for link in self._laying.links() if link.worker_id not in ready]
        if event.compressed is None or not others:
            return
        wanted, why = self._compresses(event, event.compressed, others)
        if wanted:
            every = (*event.deltas, DeltaFrom(NOTHING, event.compressed.object_id))
            publication.deltas = promised(state, every, most, now)
        publication.payload_reason = "; ".join(filter(None, (publication.payload_reason, why)))

    def _compresses(self, event: PublishRequested, compressed: Compressed, links: list[Link]) -> tuple[bool, str]:
        """Whether these workers are sent the compressed snapshot, and why."""
        gain = compression_gain(
            event.snapshot_bytes,
            compressed.payload_bytes,
            compressed.encode_bytes_per_s,
            compressed.decode_bytes_per_s,
            self._laying.origin_rate(event.origin_id),
            [link.uplink_bytes_per_s for link in links],
            [link.downlink_bytes_per_s for link in links],
            event.until,
        )
        cost = f"{gain.saved_s:.3g} s less on the links, {gain.added_s:.3g} s more for encoding and decoding"
        if event.payload is Payload.COMPRESSED:
            return True, f"compressed as was asked for: {cost}"
        return gain.worth, f"{'compressed' if gain.worth else 'not compressed'}: {cost}"

    def _say_deltas(self, publication: Publication, event: PublishRequested) -> None:
        ready = takers(self._context.state, publication.deltas.values())
        if ready:
            bases = "the base" if len(publication.deltas) == 1 else f"one of {len(publication.deltas)} bases"
            publication.payload_reason = f"{len(ready)} of {len(self._laying.links())} workers hold {bases}"
        else:
            publication.payload_reason = "no worker holds the base" if event.deltas else event.no_delta

    def _prune(self) -> None:
        """Forget the oldest publications that are over."""
        state = self._context.state
        over = [p for p in state.mains if p.phase in ENDED or p.retired]
        excess = len(state.mains) - self._context.config.publications_kept
        for main in over[: max(0, excess)]:
            for publication in of_version(state, main):
                del state.publications[publication.object_id]
                self._context.persist(publication)

    def watcher_left(self, event: PublishWatcherLeft) -> None:
        for publication in self._context.state.publications.values():
            publication.watchers.pop(event.request, None)
