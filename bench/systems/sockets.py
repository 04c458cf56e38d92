"""Bare sockets: what the kernel alone can do. One TCP stream over one link (the floor), and chains of them."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

from bench.systems.common import Course, Field, Outcome, Payload

PORT = 9000
_NODE = "bench.systems.socketnode"


@dataclass(frozen=True, slots=True)
class SocketChains:
    """The trainer feeds `course.chains` chains; in each, one blocking thread per relay receives, stores and forwards.

    Nothing is verified, nothing synced, nothing resumed. `floor` is one hop only: to the first worker.
    """

    key: str = "bare-sockets"
    title: str = "bare-socket chains"
    floor: bool = False

    def missing(self) -> str | None:
        return None

    async def run(self, course: Course, payload: Payload, directory: Path) -> Outcome:
        if self.floor:
            course = Course(course.b0, course.links[:1], course.mtu)
        chains = [course.names[slot :: course.chains] for slot in range(course.chains)]
        async with Field(course, directory) as ground:
            copies = {name: ground.folder(name) / payload.path.name for name in course.names}
            relays = {}
            for chain in chains:
                for name, child in zip(chain, (*chain[1:], None), strict=True):
                    to = [f"{ground.address(child)}:{PORT}"] if child else []
                    listen = f"{ground.address(name)}:{PORT}"
                    arguments = ("relay", str(copies[name]), str(payload.size_bytes), listen, *to)
                    relays[name] = await ground.start_python(name, _NODE, *arguments)
            heads = [f"{ground.address(chain[0])}:{PORT}" for chain in chains]
            source = await ground.start_python("trainer", _NODE, "source", str(payload.path), *heads)
            meter, start_s = ground.meter(), time.monotonic()
            source.tell()
            done = await asyncio.gather(*(relay.done_s() for relay in relays.values()))
            times = dict(zip(relays, done, strict=True))
            return await ground.outcome(self.key, start_s, times, meter.read(payload.size_bytes), payload, copies)


FLOOR = SocketChains("floor", "one bare-TCP hop (the floor)", floor=True)
