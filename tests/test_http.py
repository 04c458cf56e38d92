from __future__ import annotations

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Gauge

from chappe.errors import ConfigError
from chappe.http import serve_http


async def _get(url: str, accept: str = "*/*") -> tuple[int, str, str]:
    async with aiohttp.ClientSession() as session, session.get(url, headers={"Accept": accept}) as reply:
        return reply.status, reply.headers["Content-Type"], await reply.text()


async def test_serves_metrics_health_and_readiness() -> None:
    registry = CollectorRegistry()
    Gauge("things", "Things there are.", registry=registry).set(3)
    ready = [False, "no version yet"]
    server = await serve_http("127.0.0.1:0", registry, lambda: (bool(ready[0]), str(ready[1])))
    try:
        assert server.address.port != 0
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
        assert server.url == f"http://[::1]:{server.address.port}"
        assert (await _get(f"{server.url}/healthz"))[0] == 200
        with pytest.raises(ConfigError, match=r"--http .*cannot listen"):
            await serve_http(str(server.address), CollectorRegistry(), lambda: (True, "ready"))
    finally:
        await server.close()


@pytest.mark.parametrize("text", ["", "9400", "host", "host:http", "host:70000", "h:1/x", "::1:9400"])
async def test_a_bad_address_names_the_flag(text: str) -> None:
    with pytest.raises(ConfigError, match="--http"):
        await serve_http(text, CollectorRegistry(), lambda: (True, "ready"))


async def test_without_a_host_it_stays_on_this_one() -> None:
    server = await serve_http(":0", CollectorRegistry(), lambda: (True, "ready"))
    assert server.address.host == "127.0.0.1"
    await server.close()
