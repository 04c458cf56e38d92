"""aria2 as it spreads a file among many: its own BitTorrent client, with a tracker that knows everybody.

No DHT, no local discovery, no rate or peer limits, no encryption; the seed does not check its file first.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from bench.systems.common import Course, Field, Outcome, Payload
from bench.systems.programs import Helper, needs_program, program
from bench.systems.torrent import PORT, TRACKER_PORT, make_torrent, tracker_answer

FLAGS = (
    "--no-conf",
    "--enable-dht=false",
    "--enable-dht6=false",
    "--bt-enable-lpd=false",
    "--enable-peer-exchange=false",
    "--bt-max-peers=0",
    "--bt-request-peer-speed-limit=1024M",
    "--max-upload-limit=0",
    "--seed-ratio=0.0",
    "--file-allocation=none",
    "--disk-cache=64M",
    "--allow-overwrite=true",
    "--summary-interval=0",
    "--show-console-readout=false",
    "--console-log-level=error",
    f"--listen-port={PORT}",
)


class Aria2:
    """Says when it is done by its own hook, which writes the time of day."""

    key = "aria2"
    title = "aria2 (BitTorrent)"

    def missing(self) -> str | None:
        return needs_program("aria2c", "aria2")

    async def run(self, course: Course, payload: Payload, directory: Path) -> Outcome:
        async with Field(course, directory) as ground:
            folder = ground.folder("trainer")
            tracker = f"{ground.address('trainer')}:{TRACKER_PORT}"
            torrent, answer, hook = folder / "payload.torrent", folder / "answer", folder / "hook.sh"
            make_torrent(payload.path, f"http://{tracker}/announce", torrent)
            answer.write_bytes(tracker_answer([ground.address(name) for name in ("trainer", *course.names)]))
            hook.write_text("#!/bin/sh\necho done $(date +%s.%N)\n")
            hook.chmod(0o755)
            listen = (ground.address("trainer"), str(answer), str(TRACKER_PORT))
            await ground.start_python("trainer", "bench.systems.torrent", *listen)
            seed = ("--bt-seed-unverified=true", f"--dir={payload.path.parent}", str(torrent))
            await ground.start("trainer", program("aria2c"), *FLAGS, *seed)
            await ground.wait_listening("trainer", PORT)
            meter, start_s = ground.meter(), time.monotonic()
            started = await asyncio.gather(*(self._start(ground, name, hook, torrent) for name in course.names))
            peers = dict(zip(course.names, started, strict=True))
            offset_s = time.monotonic() - time.time()
            done = await asyncio.gather(*(peer.done_s() for peer in peers.values()))
            times = {name: at + offset_s for name, at in zip(peers, done, strict=True)}
            copies = {name: ground.folder(name) / payload.path.name for name in course.names}
            used = meter.read(payload.size_bytes)
            await asyncio.gather(*(peer.interrupt() for peer in peers.values()))  # it writes what it holds
            return await ground.outcome(self.key, start_s, times, used, payload, copies)

    async def _start(self, ground: Field, name: str, hook: Path, torrent: Path) -> Helper:
        flags = (f"--dir={ground.folder(name)}", f"--on-bt-download-complete={hook}", str(torrent))
        return await ground.start(name, program("aria2c"), *FLAGS, *flags)
