"""Deltas that leave while later blocks are still compared, as `chappe.origin.streaming` sends them.

    accepted ──one after the other──▶ open: its end is an estimate; what is made of it is served as it is made
        ──all made, and the root known──▶ told what it has ──▶ the last page, and with it the end, for everybody
        ──it outgrows its bound, or cannot be gone on with──▶ withdrawn, whatever of it is where

Who closes it says how much it has to the coordinator first. How many chunks there are is known to a relay from the
last page on (`Copy.total`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chappe.core.ranges import RangeSet
from chappe.origin.growing import pages_of
from chappe.sim.copies import WHOLE, Copy
from chappe.sim.flow import announce
from chappe.sim.tracks import Track

if TYPE_CHECKING:
    from chappe.sim.encoding import Encoded, Encoder
    from chappe.sim.origin import Job

ESTIMATE = (0.6, 1.5)
"""What the sample says, of what it will be."""
OUTGROWS = 0.08
"""How often a delta has more than it may have."""


def begin(encoder: Encoder, job: Job) -> None:
    """The request is accepted, hashing has begun."""
    for number, one in enumerate(job.wanted):
        encoder.origin.later(number * job.encode_s + 1e-3, _open, encoder, job, one)


def _open(encoder: Encoder, job: Job, one: Encoded) -> None:
    origin, rng = encoder.origin, encoder.origin.world.random
    if job.stopped or job.failed or one.failed:
        return
    made = encoder.object_of(job, one, open_end=True)
    one.estimate_bytes = max(1, round(one.payload_bytes * rng.uniform(*ESTIMATE)))
    copy = origin.copies[one.object_id] = Copy(made, RangeSet(), header=True)
    fixed = _before_last_page(made.chunks_total, made.chunk_bytes)
    rate = max(fixed, 1) / job.encode_s
    track = copy.tracks[WHOLE] = Track([(0, fixed)] if fixed else [], origin.agenda.now, lambda r: copy.store(r, None))
    track.turn(origin.agenda.now, rate)
    encoder.offer(job, one)
    outgrown_s = rng.random() * job.encode_s if rng.random() < OUTGROWS else None
    if outgrown_s is not None:
        origin.later(outgrown_s, _outgrown, encoder, one)
    origin.later(job.encode_s, _all_made, encoder, job, one)
    origin.world.counts["opened"] += 1
    origin.world.spring("open", job, one)


def _before_last_page(total: int, chunk_bytes: int) -> int:
    per_page = pages_of(chunk_bytes)
    return (total - 1) // per_page * per_page


def _outgrown(encoder: Encoder, one: Encoded) -> None:
    if encoder.serves(one) and not one.closed:
        encoder.origin.world.counts["outgrown"] += 1
        encoder.fail(one, "it has more bytes than it may have")


def _all_made(encoder: Encoder, job: Job, one: Encoded) -> None:
    if not encoder.serves(one):
        return
    copy = encoder.origin.copies[one.object_id]
    copy.settle(encoder.origin.agenda.now)
    copy.tracks.pop(WHOLE, None)
    announce(encoder.origin.agenda, copy, WHOLE, replanned=True)
    one.whole = True
    close(encoder, job, one)


def close(encoder: Encoder, job: Job, one: Encoded) -> None:
    """When all of it is made and the root of what it leads to is known."""
    origin = encoder.origin
    if not (one.whole and job.announced) or one.closed or job.failed or not encoder.serves(one):
        return
    copy = origin.copies[one.object_id]
    one.closed = True
    origin.world.closed.add(one.object_id)
    encoder.offer(job, one)
    total = copy.object.chunks_total
    copy.store([(_before_last_page(total, copy.object.chunk_bytes), total)], None)
    copy.pages_upto = total
    announce(origin.agenda, copy, WHOLE, replanned=True)
