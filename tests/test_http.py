from __future__ import annotations

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Gauge

from chappe.errors import ConfigError
from chappe.http import serve_http, split_address


async def _get(url: str, accept: str = "*/*") -> tuple[int, str, str]:
    async with aiohttp.ClientSession() as session, session.get(url, headers={"Accept": accept}) as reply:
        return reply.status, reply.headers["Content-Type"], await reply.text()


async def test_serves_metrics_health_and_readiness() -> None:
    registry = CollectorRegistry()
    Gauge("things", "Things there are.", registry=registry).set(3)
    ready = [False, "no version yet"]
    server = await serve_http("127.0.0.1:0", registry, lambda: (bool(ready[0]), str(ready[1])))
    try:
        assert server.port != 0
        status, content_type, body = await _get(f"{server.url}/metrics")
        assert (status, "things 3.0" in body) == (200, True)
        assert content_type.startswith("text/plain")
        status, content_type, body = await _get(f"{server.url}/metrics", "application/openmetrics-text;version=1.0.0")
        assert content_type.startswith("application/openmetrics-text")
        assert body.endswith("# EOF\n")
        assert await _get(f"{server.url}/healthz") == (200, "text/plain; charset=utf-8", "ok\n")
        assert await _get(f"{server.url}/readyz") == (503, "text/plain; charset=utf-8", "no version yet\n")
        ready[:] = [True, "version 3"]
        assert await _get(f"{server.url}/readyz") == (200, "text/plain; charset=utf-8", "version 3\n")
        assert (await _get(f"{server.url}/nothing"))[0] == 404
    finally:
        await server.close()


async def test_ipv6_and_a_port_that_is_taken() -> None:
    server = await serve_http("[::1]:0", CollectorRegistry(), lambda: (True, "ready"))
    try:
        assert server.address == f"[::1]:{server.port}"
        assert (await _get(f"{server.url}/healthz"))[0] == 200
        with pytest.raises(ConfigError, match=r"--http .*cannot listen"):
            await serve_http(server.address, CollectorRegistry(), lambda: (True, "ready"))
    finally:
        await server.close()


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("127.0.0.1:9400", ("127.0.0.1", 9400)),
        ("[::1]:9400", ("::1", 9400)),
        (":0", ("127.0.0.1", 0)),
        ("host.example:80", ("host.example", 80)),
    ],
)
def test_split_address(text: str, parsed: tuple[str, int]) -> None:
    assert split_address(text) == parsed


@pytest.mark.parametrize("text", ["", "9400", "host", "host:", "host:http", "host:70000", "h:1/x", "a@h:1", "[::1:1"])
def test_split_address_names_the_flag(text: str) -> None:
    with pytest.raises(ConfigError, match="--http"):
        split_address(text)
