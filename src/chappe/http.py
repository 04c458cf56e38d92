"""The HTTP side of both daemons: `/metrics` for Prometheus, `/healthz` (the process lives), `/readyz` (it is of use).

It serves what it is given and knows nothing of fleets or transfers. Plain HTTP, read-only, no parameters: what it shows
is what the status command shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from chappe.errors import ConfigError, UsageError
from chappe.hop.net import Address, parse_address

if TYPE_CHECKING:
    from aiohttp import web  # a quarter of a daemon's start, so imported only where --http is given

Ready = Callable[[], tuple[bool, str]]
"""Ready or not, and a line for a person that says why."""

_SHUTDOWN_TIMEOUT_S = 1.0  # a scrape that hangs must not eat the 5 s in which a daemon stops


@dataclass(frozen=True, slots=True)
class HttpServer:
    """A server that listens. Its address has the real port when port 0 was asked for."""

    address: Address
    _runner: web.AppRunner

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    async def close(self) -> None:
        await self._runner.cleanup()


def make_app(registry: CollectorRegistry, ready: Ready) -> web.Application:
    """The three pages, for a server of one's own."""
    from aiohttp import web

    async def metrics(request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(registry), headers={"Content-Type": content_type})

    async def healthz(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_request: web.Request) -> web.Response:
        is_ready, why = ready()
        return web.Response(status=200 if is_ready else 503, text=why + "\n")

    app = web.Application()
    app.add_routes([web.get("/metrics", metrics), web.get("/healthz", healthz), web.get("/readyz", readyz)])
    return app


async def serve_http(address: str, registry: CollectorRegistry, ready: Ready) -> HttpServer:
    """Listen on `HOST:PORT` (port 0 takes a free one). Raises ConfigError when the address is wrong or taken."""
    from aiohttp import web

    try:
        wanted = parse_address(address, "127.0.0.1")
    except UsageError as error:
        raise ConfigError(f"--http: {error}") from error
    runner = web.AppRunner(
        make_app(registry, ready), handle_signals=False, access_log=None, shutdown_timeout=_SHUTDOWN_TIMEOUT_S
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, wanted.host, wanted.port).start()
    except OSError as error:
        await runner.cleanup()
        raise ConfigError(f"--http {address}: cannot listen there: {error.strerror or error}") from error
    return HttpServer(wanted.with_port(int(runner.addresses[0][1])), runner)
