"""Many real relays in one process: `python -m bench.relayhost COORDINATOR DIRECTORY FIRST COUNT`, until SIGTERM.

Each is what `relayd` runs, with a store, a server and a Join stream of its own; they share an event loop. Says on
stderr, as a daemon does, when all of them serve: {"event": "relays_ready", ...}.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from chappe.hop.malloc import raise_thresholds

RATE = "1gbit"


async def host(coordinator: str, directory: Path, first: int, count: int) -> None:
    from relayd.config import RelaydSettings
    from relayd.daemon import Endpoints, open_daemon

    from chappe.hop.store import Store

    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    async with AsyncExitStack() as stack:
        for number in range(first, first + count):
            name = f"r{number}"
            place = {"coordinator": coordinator, "store": directory / name, "name": name, "listen": "127.0.0.1:0"}
            settings = RelaydSettings.model_validate({**place, "uplink": RATE, "downlink": RATE})
            store = Store.open(settings.store)
            stack.callback(store.close)
            await store.recover()
            await stack.enter_async_context(open_daemon(settings, store, Endpoints.of(settings)))
        print(json.dumps({"event": "relays_ready", "address": "", "relays": count}), file=sys.stderr, flush=True)
        await told.wait()
        os._exit(0)  # nobody is to be moved any more, and stores that are thrown away need no last words


def main() -> None:
    raise_thresholds()  # before grpc is imported
    import uvloop

    from chappe.logs import configure_logging

    configure_logging("json", "error")
    coordinator, directory, first, count = sys.argv[1:]
    uvloop.run(host(coordinator, Path(directory), int(first), int(count)))


if __name__ == "__main__":
    main()
