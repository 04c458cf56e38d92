"""A real Prometheus scrapes a real coordinator and finds what was published."""

from __future__ import annotations

import asyncio
import shutil
import socket
from pathlib import Path

import aiohttp
import pytest
from join_nodes import LIMIT_S, broadcast, coordinator, fleet

QUERY = 'chappe_install_fraction{version="5",state="installed"}'


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed")
async def test_prometheus_scrapes_the_install_fraction(tmp_path: Path) -> None:
    async with coordinator(tmp_path, http="127.0.0.1:0") as (running, stub), aiohttp.ClientSession() as client:
        origin, relays = await fleet(stub, ["a", "b"])
        await broadcast(stub, origin, relays, 1, version=5)
        assert running.http is not None
        config = tmp_path / "prometheus.yml"
        config.write_text(
            "scrape_configs:\n- job_name: chappe\n  scrape_interval: 200ms\n  scrape_timeout: 200ms\n"
            f'  static_configs: [{{targets: ["{running.http.address}"]}}]\n'
        )
        port = free_port()  # Prometheus cannot be told to take any
        process = await asyncio.create_subprocess_exec(
            "prometheus",
            f"--config.file={config}",
            f"--storage.tsdb.path={tmp_path / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{port}",
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            async with asyncio.timeout(2 * LIMIT_S):
                result = await until_known(client, port, QUERY)
        finally:
            process.kill()
            await process.wait()
    assert [series["value"][1] for series in result] == ["1"]
    assert result[0]["metric"]["job"] == "chappe"


async def until_known(client: aiohttp.ClientSession, port: int, query: str) -> list[dict[str, dict[str, str]]]:
    """Prometheus has no event for "scraped": ask until it has."""
    while True:
        try:
            async with client.get(f"http://127.0.0.1:{port}/api/v1/query", params={"query": query}) as reply:
                result: list[dict[str, dict[str, str]]] = (await reply.json())["data"]["result"]
                if result:
                    return result
        except (aiohttp.ClientConnectionError, aiohttp.ContentTypeError, KeyError):
            pass  # not up yet
        await asyncio.sleep(0.1)
