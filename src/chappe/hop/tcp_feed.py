"""Feeds one child over its data connection, in the thread that writes to it, until there is a reason to end.

    ledger ──bell──▶ thread: what goes next? ──▶ pages, chunks out of their files, watermarks, End(COMPLETE) ──▶ socket
    event loop:      run() ... is told of the end, of chunks that cannot be read, and of a connection that is gone

A relay's receiving thread rings the bell once a chunk is stored: no event loop stands between the two. `stop` ends it
while it waits; while it writes, whoever ends it shuts the socket down. What goes next is dealt to all connections of
the child (`chappe.hop.tcp_deal`), each of which has a feed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from chappe.clock import boot_now
from chappe.core.manifest import CHUNK_TIME_S, Manifest
from chappe.errors import ChappeError
from chappe.hop.course import Carry, Dry, Ended, Mark, Say
from chappe.hop.guard import Ticket
from chappe.hop.limits import TokenBucket
from chappe.hop.meter import HopMeter
from chappe.hop.source import ChunkFiles, ChunkSource
from chappe.hop.stall import stall_timeout_s
from chappe.hop.tcp_deal import Deal, Lane
from chappe.hop.tcp_send import FileChunk, TcpLostError
from chappe.hop.turns import CHANGE_S
from chappe.v1.relay_pb2 import EndReason
from chappe.wire.frames import encode_end
from chappe.wire.tcp_frames import HEAD_BYTES, encode_chunk_head, encode_message

BATCH_BYTES_MAX = 8 << 20
"""Of what is taken from the ledger at a time: it is in files."""
BATCH_CHUNKS_MAX = 128
_MEANWHILE_S = 0.5


@dataclass(frozen=True, slots=True)
class Fed:
    """Why it ended: with a reason (COMPLETE has been said to the child), because of chunks that cannot be read, or
    because its connection is `lost` and others go on."""

    reason: EndReason | None
    unreadable: tuple[int, ...] = ()
    lost: TcpLostError | None = None


class _StoppedError(Exception):
    """Inside `run` only."""


class Feed:
    """`run` is for the connection's thread, once or again; `stop` for the event loop."""

    def __init__(
        self,
        source: ChunkSource,
        deal: Deal,
        lane: Lane,
        ticket: Ticket,
        meter: HopMeter,
        uplink: TokenBucket | None,
    ) -> None:
        self._source, self._deal, self._lane, self._ticket = source, deal, lane, ticket
        self._meter, self._uplink, self._outlet = meter, uplink, lane.outlet
        self._files = source if isinstance(source, ChunkFiles) else None
        self._turns, self._share = deal.turns, lane.share
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True
        self._lane.bell.ring()
        self._deal.leave(self._lane)

    def run(self) -> Fed:
        """Raises TcpLostError where no other connection goes on, and what the source raises."""
        try:
            with self._source.signal.ringing(self._lane.bell):
                return self._run()
        except _StoppedError:
            return Fed(self._ticket.ended_by or EndReason.END_REASON_UNSPECIFIED)
        except TcpLostError as error:
            if self._stopped or not self._deal.broke(self._lane, error.doubted):
                raise
            return Fed(None, lost=error)

    def _run(self) -> Fed:
        deal, ticket, outlet = self._deal, self._ticket, self._outlet
        while True:
            self._raise_if_stopped()
            now = boot_now()
            match deal.next(self._lane, now, self._chunks_max):
                case Dry(until_s):
                    if deal.idle(self._lane):
                        ticket.progress(now)  # it has all that there is
                        self._meter.idle(now)
                    if self._turns is not None and self._share is not None:
                        self._turns.rest(self._share)
                    self._lane.bell.wait(until_s - now)
                case Mark(reply):
                    outlet.write(encode_message(reply))
                case Say(replies):
                    self._say(replies)
                case Carry(pages, chunks):
                    self._say(pages)
                    unreadable = self._carry_in_turn(chunks)
                    if unreadable:
                        deal.unreadable(self._lane, unreadable)
                        return Fed(None, unreadable)
                case Ended(reason):
                    if reason == EndReason.END_REASON_COMPLETE:
                        outlet.write(encode_message(encode_end(reason)))
                    return Fed(reason)

    def _raise_if_stopped(self) -> None:
        if self._stopped or self._ticket.ended_by is not None:
            raise _StoppedError

    def _chunks_max(self, manifest: Manifest) -> int:
        """What the link carries within the chunk time, by what it has shown so far: at first, one."""
        batch_bytes = min(self._meter.paced_bytes_per_s() / self._deal.lanes * CHUNK_TIME_S, BATCH_BYTES_MAX)
        return max(1, min(BATCH_CHUNKS_MAX, int(batch_bytes) // manifest.chunk_bytes))

    def _say(self, replies: Iterator[bytes]) -> None:
        for reply in replies:
            self._begin(len(reply))
            self._outlet.write(encode_message(reply))
            self._end(len(reply))

    def _carry_in_turn(self, chunks: list[int]) -> tuple[int, ...]:
        manifest = self._source.manifest
        if self._turns is None or self._share is None or manifest is None:
            return self._carry(chunks)
        self._meter.start(boot_now())
        if not self._turns.take(self._share, len(chunks), lambda: self._wait_on(len(chunks))):
            raise _StoppedError
        unreadable = self._carry(chunks)
        ahead_s = CHANGE_S + 2 * self._outlet.round_trip_s()
        bytes_per_s = self._meter.paced_bytes_per_s() / self._deal.lanes
        self._turns.sent(self._share, ahead_s * bytes_per_s / manifest.chunk_bytes)
        return unreadable

    def _wait_on(self, unsent: int) -> None:
        """It is not the child that has stalled, and it is told that it is not this node either."""
        self._ticket.progress(boot_now())
        self._mark(unsent)

    def _mark(self, unsent: int = 0) -> None:
        self._outlet.write(encode_message(self._deal.mark(self._lane, boot_now(), unsent).reply))

    def _carry(self, chunks: list[int]) -> tuple[int, ...]:
        """Returns the chunks that were not sent, because they cannot be read."""
        manifest = self._source.manifest
        assert manifest is not None
        lengths = [manifest.place(chunk).length for chunk in chunks]
        size_bytes = sum(lengths) + HEAD_BYTES * len(chunks)
        self._begin(size_bytes)
        unreadable = [
            chunk for chunk, length in zip(chunks, lengths, strict=True) if not self._carry_chunk(chunk, length)
        ]
        self._end(size_bytes - sum(HEAD_BYTES + manifest.place(chunk).length for chunk in unreadable))
        return tuple(unreadable)

    def _carry_chunk(self, chunk: int, length: int) -> bool:
        opened = None if self._files is None else self._files.open_chunk(chunk)
        if opened is not None:
            sent = self._outlet.write_chunk(FileChunk(chunk, length, opened))
        else:
            try:
                data = self._source.read_chunk(chunk)
            except (OSError, ChappeError):
                return False
            self._outlet.write(encode_chunk_head(chunk, length) + data)
            sent = True
        if sent:
            self._deal.written(self._lane, chunk)
        self._ticket.progress(boot_now())  # a batch may take long on a link that has become slow
        return sent

    def _begin(self, size_bytes: int) -> None:
        now = boot_now()
        self._meter.start(now)
        if self._uplink is None:
            return
        booking = self._uplink.book(size_bytes)
        start_s, marked_s = now + booking.wait_s, now
        while (now := boot_now()) < start_s:
            if now - marked_s >= _MEANWHILE_S:  # many children on a thin uplink wait for long
                marked_s = now
                self._mark()
            self._lane.bell.wait(min(start_s - now, _MEANWHILE_S))
            if self._stopped or self._ticket.ended_by is not None:
                self._uplink.give_back(booking)
                raise _StoppedError

    def _end(self, size_bytes: int) -> None:
        now = boot_now()
        self._meter.record(size_bytes, now)
        self._ticket.progress(now)
        pace = self._meter.linked_bytes_per_s()
        if pace:  # a child that takes long over a message because its link is slow is not one that has stalled
            self._ticket.patience_s = stall_timeout_s(0.0, self._deal.lanes * size_bytes, pace)
