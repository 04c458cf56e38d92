"""From publish() to the first bytes of a delta, and of a compressed snapshot, at a worker; and to the landed version.

One coordinator, one relay and a publisher on this machine, all in memory; the delta's base is in place. The publisher
hashes the full object meanwhile, as it always does.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from bench import scratch
from bench.deltaland import touch_memory
from bench.updates import Update
from chappe.cli.localfleet import LocalFleet, RelaySpec
from chappe.cli.process import Process
from chappe.publisher import AsyncPublisher

Row = dict[str, Any]
SHARDS = 4
RECEIVED = "relayd_received_bytes_total"
_TOUCHED = 4  # snapshots: what the worker and the publisher write of one, and some more
_POLL_S = 0.002  # of a counter: there is no event to wait for


def first_bytes(update: Update, memory: Path) -> list[Row]:
    """`update` is of one of the shards that a snapshot has."""
    with tempfile.TemporaryDirectory(dir=memory, prefix=scratch.prefix("delta")) as folder:
        return asyncio.run(_measure(update, Path(folder)))


async def _measure(update: Update, folder: Path) -> list[Row]:
    base = _write(folder / "v1", update.base)
    target = _write(folder / "v2", update.target)
    rows = []
    for kind in ("delta", "compressed"):
        home = folder / kind
        async with (
            LocalFleet(home, (RelaySpec("w1", ("--http", "127.0.0.1:0")),)) as fleet,
            AsyncPublisher(fleet.address, spool=folder) as publisher,
        ):
            if kind == "delta":
                await (await publisher.publish(base, payload="full")).wait(timeout_s=120)
                await publisher._bases.settled()
            relay = fleet.workers["w1"]
            await asyncio.to_thread(touch_memory, _TOUCHED * 2 * SHARDS * update.base.size)
            before = await _received(relay)
            started = time.perf_counter()
            publication = await publisher.publish(target, payload=kind)
            while await _received(relay) <= before:  # noqa: ASYNC110  another process counts
                await asyncio.sleep(_POLL_S)
            first_s = time.perf_counter() - started
            result = await publication.wait(timeout_s=120)
            all_s = time.perf_counter() - started
        rows.append(
            {
                "payload": kind,
                "snapshot_bytes": 2 * SHARDS * update.base.size,
                "payload_bytes": result.payload_bytes,
                "first_s": first_s,
                "all_s": all_s,
            }
        )
    return rows


def _write(folder: Path, tensor: np.ndarray[Any, Any]) -> Path:
    folder.mkdir()
    for number in range(SHARDS):
        save_file({f"w{number}": tensor.view(np.uint16)}, folder / f"model-{number}.safetensors")
    return folder


async def _received(relay: Process) -> float:
    """What the relay has received, from its metrics: a bare request, since it is asked often."""
    host, _, port = relay.ready["http"].removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
        await writer.drain()
        text = (await reader.read()).decode()
    finally:
        writer.close()
    line = next(line for line in text.splitlines() if line.startswith(RECEIVED + " "))
    return float(line.split()[1])
