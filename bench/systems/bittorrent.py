"""BitTorrent by libtorrent: a fresh swarm with one seed, in which everybody knows everybody from the start.

Given its best chance, as far as trying showed: no DHT, no local discovery, no tracker to wait for (explicit peers), TCP
only (uTP backs off on these links), no limit on connection attempts, no rate limits, 8 unchoked peers each. Tried and
slower or the same: super seeding (three times as long), pieces of 16, 32, 128 and 256 KiB, all peers unchoked, shorter
request queues, smaller send buffers, suggestions. The torrent is made, and the seed's pieces are known, before the
clock starts.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.systems.common import Course, Field, Outcome, Payload
from bench.systems.torrent import PIECE_BYTES, PORT, make_torrent

SETTINGS: dict[str, Any] = {
    "enable_dht": False,
    "enable_lsd": False,
    "enable_upnp": False,
    "enable_natpmp": False,
    "enable_outgoing_utp": False,
    "enable_incoming_utp": False,
    "mixed_mode_algorithm": 0,  # prefer TCP
    "connection_speed": 500,
    "unchoke_slots_limit": 8,
    "allow_multiple_connections_per_ip": True,
    "close_redundant_connections": False,
    "announce_crypto_support": False,
    "out_enc_policy": 2,  # no encryption
    "in_enc_policy": 2,
}
_NODE = "bench.systems.bittorrentnode"


@dataclass(frozen=True, slots=True)
class BitTorrent:
    """Pieces of 64 KiB: small ones let a fresh swarm exchange sooner."""

    key: str = "bittorrent"
    title: str = "BitTorrent (libtorrent)"
    piece_bytes: int = PIECE_BYTES
    super_seeding: bool = False
    settings: dict[str, Any] = field(default_factory=lambda: dict(SETTINGS))

    def missing(self) -> str | None:
        return None if find_spec("libtorrent") else "libtorrent is not installed (pip install '.[bench]')"

    async def run(self, course: Course, payload: Payload, directory: Path) -> Outcome:
        async with Field(course, directory) as ground:
            torrent = ground.folder("trainer") / "payload.torrent"
            await asyncio.to_thread(make_torrent, payload.path, None, torrent, self.piece_bytes)
            config = ground.folder("trainer") / "settings.json"
            config.write_text(json.dumps(self.settings))
            everybody = [f"{ground.address(name)}:{PORT}" for name in ("trainer", *course.names)]

            async def start(name: str, role: str, folder: Path) -> Any:
                me = f"{ground.address(name)}:{PORT}"
                others = [address for address in everybody if address != me]
                arguments = (role, str(torrent), str(config), str(folder), me, *others)
                return await ground.start_python(name, _NODE, *arguments)

            role = "super-seed" if self.super_seeding else "seed"
            seed = await start("trainer", role, payload.path.parent)
            started = await asyncio.gather(*(start(name, "peer", ground.folder(name)) for name in course.names))
            peers = dict(zip(course.names, started, strict=True))
            meter, start_s = ground.meter(), time.monotonic()
            for node in (seed, *peers.values()):
                node.tell()
            done = await asyncio.gather(*(node.done_s() for node in peers.values()))
            outcome_cpu = meter.read(payload.size_bytes)
            await asyncio.gather(*(node.finish() for node in peers.values()))  # what is in its buffers goes to its file
            copies = {name: ground.folder(name) / payload.path.name for name in course.names}
            times = dict(zip(peers, done, strict=True))
            return await ground.outcome(self.key, start_s, times, outcome_cpu, payload, copies)
