"""The HTTP side of both daemons: `/metrics` for Prometheus, `/healthz` (the process lives), `/readyz` (it is of use).

It serves what it is given and knows nothing of fleets or transfers. Plain HTTP, read-only, no parameters: what it shows
is what the status command shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from chappe.errors import ConfigError

Ready = Callable[[], tuple[bool, str]]
"""Ready or not, and a line for a person that says why."""

_SHUTDOWN_TIMEOUT_S = 1.0  # a scrape that hangs must not eat the 5 s in which a daemon stops


@dataclass(frozen=True, slots=True)
class HttpServer:
    """A server that listens. `port` is the real one when port 0 was asked for."""

    host: str
    port: int
    _runner: web.AppRunner

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    async def close(self) -> None:
        await self._runner.cleanup()


def split_address(address: str) -> tuple[str, int]:
    """`HOST:PORT`, `[IPV6]:PORT` or `:PORT` (loopback). Raises ConfigError naming the flag."""
    try:
        parts = urlsplit(f"//{address}")
        port = parts.port
    except ValueError:
        port = None
    if port is None or parts.netloc != address or "@" in address:
        raise ConfigError(f"--http {address}: write it as HOST:PORT, for instance 127.0.0.1:9400 or [::1]:9400")
    return parts.hostname or "127.0.0.1", port


def make_app(registry: CollectorRegistry, ready: Ready) -> web.Application:
    """The three pages, for a server of one's own."""

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
    host, port = split_address(address)
    runner = web.AppRunner(
        make_app(registry, ready), handle_signals=False, access_log=None, shutdown_timeout=_SHUTDOWN_TIMEOUT_S
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        await runner.cleanup()
        raise ConfigError(f"--http {address}: cannot listen there: {error.strerror or error}") from error
    return HttpServer(host, int(runner.addresses[0][1]), runner)
