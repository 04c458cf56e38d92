"""rsync host after host, as a tree: every host that has the file passes it on, the trainer to floor(B0/Bw) at a time.

That is the quick way to do it by hand; `rsync-sequence` is the usual one: one after the other from the trainer.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from pathlib import Path

from bench.systems.common import Course, Field, Outcome, Payload
from bench.systems.programs import Helper, needs_program, program

PORT = 8730
_CONFIG = """
use chroot = no
uid = root
gid = root
[files]
path = {root}
read only = yes
"""


@dataclass(frozen=True, slots=True)
class Rsync:
    """Daemons on every host; a worker pulls from a host that has a free slot."""

    key: str = "rsync-tree"
    title: str = "rsync, host after host (tree)"
    tree: bool = True

    def missing(self) -> str | None:
        return needs_program("rsync", "rsync")

    async def run(self, course: Course, payload: Payload, directory: Path) -> Outcome:
        async with Field(course, directory) as ground:
            roots = {"trainer": payload.path.parent} | {name: ground.folder(name) / "files" for name in course.names}
            for host, root in roots.items():
                root.mkdir(exist_ok=True)
                config = ground.folder(host) / "rsyncd.conf"
                config.write_text(_CONFIG.format(root=root))
                daemon = ("--daemon", "--no-detach", f"--port={PORT}", f"--config={config}")
                await ground.start(host, program("rsync"), *daemon)
            for host in roots:
                await ground.wait_listening(host, PORT)
            helpers = {name: await ground.start_timed(name) for name in course.names}
            copies = {name: roots[name] / payload.path.name for name in course.names}
            meter, start_s = ground.meter(), time.monotonic()
            done = await self._spread(ground, helpers, roots, payload.path.name)
            return await ground.outcome(self.key, start_s, done, meter.read(payload.size_bytes), payload, copies)

    async def _spread(
        self, ground: Field, helpers: dict[str, Helper], roots: dict[str, Path], file: str
    ) -> dict[str, float]:
        free: asyncio.Queue[str] = asyncio.Queue()
        for _ in range(ground.course.chains if self.tree else 1):
            free.put_nowait("trainer")
        done: dict[str, float] = {}

        async def pull(name: str) -> None:
            source = await free.get()
            url = f"rsync://{ground.address(source)}:{PORT}/files/{file}"
            helpers[name].tell(json.dumps([program("rsync"), "--whole-file", url, f"{roots[name]}/"]))
            done[name] = await helpers[name].done_s()
            free.put_nowait(source)
            if self.tree:
                free.put_nowait(name)

        await asyncio.gather(*map(pull, helpers))
        return done
