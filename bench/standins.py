"""Many relays without a data plane: what a coordinator hears of a broadcast, over real Join streams.

    python -m bench.standins COORDINATOR FIRST COUNT CHUNKS BROADCAST_S LOSSES

Each stand-in has a connection of its own and says what `relayd` would, as often: a heartbeat five times a lease,
connected parents, what it holds once a second while it receives, what its hops carry every two seconds, the end. Bytes
do not exist: what it holds grows with time. In the middle of the broadcast LOSSES of them break their stream, one
after the other, their children report it at once, and the time until the child has its new assignment is taken. All is
told on stderr in JSON lines: `standins_ready`, `decided` for each loss, `standins_done`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from chappe.hop.net import COORDINATOR_NAME, open_channel, open_server, parse_address
from chappe.v1 import coordinator_pb2 as pb
from chappe.v1 import coordinator_pb2_grpc, relay_pb2
from chappe.wire.frames import PROTOCOL_VERSION

RATE_BYTES_PER_S = 12.5e6
HOLDING_S, LINKS_S = 1.0, 2.0
FIRST_LOSS = 0.3
"""Of the broadcast; the last is by `LAST_LOSS`."""
LAST_LOSS = 0.8
ANSWER_TIMEOUT_S = 30.0


def say(event: str, **fields: Any) -> None:
    print(json.dumps({"event": event, **fields}), file=sys.stderr, flush=True)


@dataclass(eq=False)
class StandIn:
    """One node. `parent` and `child` are worker ids, of the only object that is wanted."""

    name: str
    coordinator: str
    address: str
    chunks: int
    broadcast_s: float
    joined: asyncio.Event = field(default_factory=asyncio.Event)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    assigned: asyncio.Event = field(default_factory=asyncio.Event)  # set at each, for whoever clears it
    assigned_s: float = 0.0
    edge: pb.Edge | None = None
    target: pb.Target | None = None
    began_s: float | None = None
    _outbox: asyncio.Queue[pb.JoinRequest] = field(default_factory=asyncio.Queue)
    _task: asyncio.Task[None] | None = None

    @property
    def worker_id(self) -> str:
        return f"id-{self.name}"

    @property
    def parent(self) -> str:
        return self.edge.parent.worker_id if self.edge is not None else ""

    @property
    def child(self) -> str:
        return self.edge.children[0].child.worker_id if self.edge is not None and self.edge.children else ""

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=self.name)

    async def vanish(self) -> None:
        """The stream breaks, as when the process is killed."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def lose_parent(self) -> None:
        """The hop to it broke."""
        assert self.edge is not None
        lost = pb.ParentLost(parent=self.parent, object_id=self.edge.object_id, epoch=self.edge.epoch, reason="broken")
        self._outbox.put_nowait(pb.JoinRequest(parent_lost=lost))

    async def _run(self) -> None:
        async with open_channel(parse_address(self.coordinator), None, COORDINATOR_NAME) as channel:
            call = coordinator_pb2_grpc.CoordinatorStub(channel).Join(self._requests())
            reporting = None
            try:
                async for message in call:
                    match message.WhichOneof("message"):
                        case "welcome":
                            self.joined.set()
                            reporting = asyncio.create_task(self._report(message.welcome.heartbeat_s))
                        case "assignment":
                            self._take(message.assignment)
            finally:
                if reporting is not None:
                    reporting.cancel()
                call.cancel()

    async def _requests(self) -> AsyncIterator[pb.JoinRequest]:
        hello = pb.Hello(
            protocol_version=PROTOCOL_VERSION,
            role=pb.ROLE_RELAY,
            worker_id=self.worker_id,
            name=self.name,
            generation=1,
            address=self.address,
            uplink_bytes_per_s=RATE_BYTES_PER_S,
            downlink_bytes_per_s=RATE_BYTES_PER_S,
        )
        yield pb.JoinRequest(hello=hello)
        while True:
            yield await self._outbox.get()

    def _take(self, assignment: pb.Assignment) -> None:
        self._outbox.put_nowait(pb.JoinRequest(acknowledge=pb.Acknowledge(epoch=assignment.epoch)))
        before = self.edge
        self.edge = assignment.edges[0] if assignment.edges else None
        self.target = assignment.targets[0] if assignment.targets else None
        if self.edge is not None and self.parent and (before is None or before.epoch != self.edge.epoch):
            if self.began_s is None:
                self.began_s = time.monotonic()
            edge = pb.ParentConnected(parent=self.parent, object_id=self.edge.object_id, epoch=self.edge.epoch)
            self._outbox.put_nowait(pb.JoinRequest(parent_connected=edge))
        self.assigned_s = time.monotonic()
        self.assigned.set()

    async def _report(self, heartbeat_s: float) -> None:
        links_s = time.monotonic()
        while True:
            if self.target is None or self.began_s is None or self.done.is_set():
                self._outbox.put_nowait(pb.JoinRequest(heartbeat=pb.Heartbeat()))
                await asyncio.sleep(heartbeat_s)
                continue
            now = time.monotonic()
            self._outbox.put_nowait(self._holding(self.target, now - self.began_s))
            if now - links_s >= LINKS_S:
                links_s = now
                self._outbox.put_nowait(self._links())
            await asyncio.sleep(HOLDING_S)

    def _holding(self, target: pb.Target, elapsed_s: float) -> pb.JoinRequest:
        held = min(self.chunks, max(1, int(self.chunks * elapsed_s / self.broadcast_s)))
        holding = pb.Holding(object_id=target.object_id, chunks_total=self.chunks)
        holding.chunks.append(relay_pb2.Range(start=0, stop=held))
        holding.state = pb.OBJECT_STATE_RECEIVING
        if held == self.chunks:
            holding.state = pb.OBJECT_STATE_RECEIVED
            if target.root:
                holding.state = pb.OBJECT_STATE_INSTALLED
                holding.version, holding.root = target.version, target.root
                self.done.set()
        return pb.JoinRequest(holding=pb.HoldingChanged(holding=holding))

    def _links(self) -> pb.JoinRequest:
        moved = {"bytes_per_s": RATE_BYTES_PER_S, "busy_s": LINKS_S, "bytes": round(RATE_BYTES_PER_S * LINKS_S)}
        samples = [
            pb.LinkSample(peer=peer, sending=sending, streams=1, **moved)
            for peer, sending in ((self.parent, False), (self.child, True))
            if peer
        ]
        return pb.JoinRequest(links=pb.LinkReport(samples=samples))


async def lose_some(standins: list[StandIn], losses: int, broadcast_s: float) -> None:
    """Break streams of relays inside their chains, and time the answers."""
    by_id = {one.worker_id: one for one in standins}
    began_s = min(one.began_s for one in standins if one.began_s is not None)
    for number in range(losses):
        share = FIRST_LOSS + (LAST_LOSS - FIRST_LOSS) * number / max(1, losses)
        await asyncio.sleep(max(0.0, began_s + share * broadcast_s - time.monotonic()))
        inner = [one for one in by_id.values() if one.child in by_id and one.parent in by_id and not one.done.is_set()]
        if not inner:
            return
        victim = inner[len(inner) // 2]
        child = by_id[victim.child]
        lag_s = time.monotonic()
        await asyncio.sleep(0)
        lag_s = time.monotonic() - lag_s
        child.assigned.clear()
        broken_s = time.monotonic()
        del by_id[victim.worker_id]
        ending = asyncio.create_task(victim.vanish())
        child.lose_parent()
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            while child.parent == victim.worker_id or not child.parent:
                await child.assigned.wait()
                child.assigned.clear()
        say("decided", victim=victim.name, seconds=child.assigned_s - broken_s, loop_lag_s=lag_s)
        await ending


async def run(coordinator: str, first: int, count: int, chunks: int, broadcast_s: float, losses: int) -> None:
    server = await open_server(parse_address("127.0.0.1:0"), None, {})  # for the coordinator to dial back
    standins = [
        StandIn(f"s{number}", coordinator, str(server.address), chunks, broadcast_s)
        for number in range(first, first + count)
    ]
    for one in standins:
        one.start()
        await one.joined.wait()
    say("standins_ready", address=str(server.address), standins=count)
    for one in standins:
        while one.began_s is None:
            await one.assigned.wait()
            one.assigned.clear()
    say("standins_began")
    if losses:
        await lose_some(standins, losses, broadcast_s)
    gone = sum(one._task is not None and one._task.done() for one in standins)
    for one in standins:
        if one._task is not None and not one._task.done():
            await one.done.wait()
    say("standins_done", gone=gone)
    await asyncio.Event().wait()


def main() -> None:
    import uvloop

    coordinator, first, count, chunks, broadcast_s, losses = sys.argv[1:]
    uvloop.run(run(coordinator, int(first), int(count), int(chunks), float(broadcast_s), int(losses)))


if __name__ == "__main__":
    main()
