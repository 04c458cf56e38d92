"""Many real relays in one process: `python -m bench.relayhost COORDINATOR DIRECTORY FIRST COUNT [UPLINKS DOWNLINK]`,
until SIGTERM. UPLINKS, with commas between, are dealt out in turn; what is given is declared, and kept to.

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
STALL_TIMEOUT = "20s"
"""Of relays with links of their own, which are slow; all of them share an event loop."""


async def host(
    coordinator: str, directory: Path, first: int, count: int, uplinks: str = "", downlink: str = ""
) -> None:
    from relayd.config import RelaydSettings
    from relayd.daemon import Endpoints, open_daemon

    from chappe.hop.store import Store

    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    async with AsyncExitStack() as stack:
        for number in range(first, first + count):
            name = f"r{number}"
            place = {"coordinator": coordinator, "store": directory / name, "name": name, "listen": "127.0.0.1:0"}
            settings = RelaydSettings.model_validate({**place, **links(number, uplinks, downlink)})
            store = Store.open(settings.store)
            stack.callback(store.close)
            await store.recover()
            await stack.enter_async_context(open_daemon(settings, store, Endpoints.of(settings)))
        print(json.dumps({"event": "relays_ready", "address": "", "relays": count}), file=sys.stderr, flush=True)
        await told.wait()
        os._exit(0)  # nobody is to be moved any more, and stores that are thrown away need no last words


def links(number: int, uplinks: str, downlink: str) -> dict[str, str]:
    if not uplinks:
        return {"uplink": RATE, "downlink": RATE}
    rates = uplinks.split(",")
    uplink = rates[number % len(rates)]
    limits = {"limit_uplink": uplink, "limit_downlink": downlink}
    return {"uplink": uplink, "downlink": downlink, "stall_timeout": STALL_TIMEOUT, **limits}


def main() -> None:
    raise_thresholds()  # before grpc is imported
    import uvloop

    from chappe.logs import configure_logging

    configure_logging("json", "error")
    coordinator, directory, first, count, *rates = sys.argv[1:]
    uvloop.run(host(coordinator, Path(directory), int(first), int(count), *rates))


if __name__ == "__main__":
    main()
