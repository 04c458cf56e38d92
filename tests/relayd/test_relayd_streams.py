"""`--streams` of a relay counts for its child as well, which has not asked for more than one."""

from __future__ import annotations

import asyncio
from pathlib import Path

from relay_fleet import Fleet, Gate, assignment, edge, make_snapshot, peer_of, target
from relayd.daemon import Daemon

from chappe.v1 import coordinator_pb2 as pb

A = "a" * 32
CHUNK = 1 << 16


def connections(relay: Daemon) -> int:
    return sum(len(stream._outlet._connections()) for stream in relay.relay.service.streams._streams)


async def test_a_relay_gives_its_child_as_many_connections(short_directory: Path) -> None:
    snapshot = make_snapshot(short_directory / "model", 200 * CHUNK)
    async with Fleet(short_directory) as fleet:
        first = await fleet.relay("r1", streams=3)
        await fleet.relay("r2")
        s1, s2 = await fleet.coordinator.joined("r1"), await fleet.coordinator.joined("r2")
        gate = Gate(128)
        hashing = fleet.origin.offer(snapshot, A, gate)
        s1.say(assignment(1, [target(A, 1)], [edge(s1, fleet.origin.peer, A, 1)]))
        s2.say(assignment(2, [target(A, 1)], [edge(s2, peer_of(s1), A, 2)]))
        async with asyncio.timeout(30):
            while connections(first) != 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        gate.open()
        await hashing
        for name in ("r1", "r2"):
            received = await fleet.coordinator.state(name, pb.OBJECT_STATE_RECEIVED)
            assert [(r.start, r.stop) for r in received.chunks] == [(0, received.chunks_total)]
