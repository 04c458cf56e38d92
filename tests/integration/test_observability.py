"""What operators see of real daemons: metrics, health, status as it changes, and how daemons end on SIGTERM."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from chappe.cli.localfleet import LocalFleet
from chappe.cli.process import Process
from chappe.publisher import AsyncPublisher
from tests.integration.fleet_tools import (
    HTTP,
    POLL_S,
    assert_same_bytes,
    make_snapshot,
    metric_reaches,
    metrics,
    payload_bytes,
    relays,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

RECEIVED = "relayd_received_bytes_total"
MB = 1 << 20

COORDINATOR_NAMES = (
    "chappe_install_fraction",
    "chappe_broadcast_seconds",
    "chappe_broadcast_floor_ratio",
    "chappe_chains",
    "chappe_relays",
    "chappe_segment_rebuilds_total",
    "chappe_payload_bytes",
)
RELAYD_NAMES = (
    "relayd_received_bytes_total",
    "relayd_forwarded_bytes_total",
    "relayd_chunk_verify_failures_total",
    "relayd_hop_bytes_per_second",
    "relayd_backlog_bytes",
    "relayd_snapshot_version",
    "relayd_install_seconds_count",
    "relayd_parent_changes_total",
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalFleet]:
    """Two relays; three versions have been published when the first test that needs them has run."""
    directory = tmp_path_factory.mktemp("fleet")
    async with LocalFleet(directory, relays(2), coordinator_flags=HTTP) as running:
        yield running


def program(name: str) -> str:
    """Its path. In CI it has to be there: `.ci/run` installs the package `prometheus`, which brings both."""
    path = shutil.which(name)
    if path is None:
        what = f"{name} is not installed (package prometheus)"
        if os.environ.get("CI") == "true":
            pytest.fail(what)
        pytest.skip(what)
    return path


async def fetch(process: Process, page: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"{process.ready['http']}/{page}") as reply:
        return reply.status, await reply.text()


async def test_readiness_follows_the_first_install_and_status_shows_it(fleet: LocalFleet, tmp_path: Path) -> None:
    """Also `status --watch` in a pipe: a table for each change, until interrupted."""
    relay = fleet.workers["w1"]
    assert await fetch(relay, "healthz") == (200, "ok\n")
    assert await fetch(relay, "readyz") == (503, "no version has landed yet\n")
    assert await fetch(fleet.coordinator, "healthz") == (200, "ok\n")
    assert (await fetch(fleet.coordinator, "readyz"))[0] == 200
    watch = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "chappe.cli.main", "status", "--watch", "--coordinator", fleet.address),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert watch.stdout is not None
        async with asyncio.timeout(60):
            while not (line := await watch.stdout.readline()).startswith(b"run "):
                assert line, "it ended"
            async with AsyncPublisher(fleet.address) as publisher:
                source = make_snapshot(tmp_path / "model", MB, seed=1)
                assert (await (await publisher.publish(source)).wait(timeout_s=60)).installed == 2
            assert await fetch(relay, "readyz") == (200, "version 1 is installed\n")
            rows: set[str] = set()
            while rows != {"w1", "w2"}:
                line = await watch.stdout.readline()
                assert line, "it ended"
                cells = [cell.strip() for cell in line.decode().replace("┃", "│").split("│")]
                if len(cells) > 2 and cells[2] == "installed":
                    rows.add(cells[1])
            watch.send_signal(signal.SIGINT)
            while await watch.stdout.readline():  # what it had still to say
                pass
            assert await watch.wait() == 0
    finally:
        if watch.returncode is None:
            watch.kill()
            await watch.wait()


async def test_all_promised_metrics_are_there_and_old_versions_go(fleet: LocalFleet, tmp_path: Path) -> None:
    async with AsyncPublisher(fleet.address) as publisher:
        for seed in (2, 3, 4):
            source = make_snapshot(tmp_path / f"model-{seed}", MB, seed=seed)
            result = await (await publisher.publish(source)).wait(timeout_s=60)
    size, version = payload_bytes(source), result.version
    shown = await metrics(fleet.coordinator)
    names = {sample.partition("{")[0] for sample in shown}
    assert set(COORDINATOR_NAMES) <= names
    assert shown[f'chappe_install_fraction{{state="installed",version="{version}"}}'] == 1.0
    assert shown['chappe_relays{state="installed"}'] == 2
    assert shown['chappe_payload_bytes{kind="full"}'] == size
    assert shown["chappe_chains"] == len(result.chains)
    assert shown['chappe_broadcast_seconds{fraction="1.0"}'] == result.t_bcast["1.0"]
    versions = {s.partition('version="')[2].partition('"')[0] for s in shown if s.startswith("chappe_install_fraction")}
    assert versions == {str(version), str(version - 1)}

    ((head, _),) = result.chains
    for process in fleet.workers.values():
        shown = await metrics(process)
        assert set(RELAYD_NAMES) <= {sample.partition("{")[0] for sample in shown}
        for state in ("received", "verified", "installed"):
            assert shown[f'relayd_snapshot_version{{state="{state}"}}'] == version
        assert shown[RECEIVED] >= 3 * size
        assert shown["relayd_backlog_bytes"] == 0
        assert shown["relayd_chunk_verify_failures_total"] == 0
    assert (await metrics(fleet.workers[head]))["relayd_forwarded_bytes_total"] >= size
    for direction in ("downlink", "uplink"):
        assert f'relayd_hop_bytes_per_second{{direction="{direction}"}}' in shown


async def test_promtool_has_nothing_to_say(fleet: LocalFleet) -> None:
    for process in (fleet.coordinator, fleet.workers["w1"]):
        _, text = await fetch(process, "metrics")
        promtool = await asyncio.create_subprocess_exec(
            *(program("promtool"), "check", "metrics"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await promtool.communicate(text.encode())
        assert (promtool.returncode, said.decode()) == (0, "")


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


async def test_prometheus_scrapes_both_daemons(fleet: LocalFleet, tmp_path: Path) -> None:
    prometheus = program("prometheus")
    targets = [p.ready["http"].removeprefix("http://") for p in (fleet.coordinator, *fleet.workers.values())]
    config = tmp_path / "prometheus.yml"
    config.write_text(
        "scrape_configs:\n- job_name: chappe\n  scrape_interval: 500ms\n  scrape_timeout: 500ms\n"
        f"  static_configs: [{{targets: {targets}}}]\n"
    )
    port = free_port()  # Prometheus cannot be told to take any
    process = await asyncio.create_subprocess_exec(
        prometheus,
        f"--config.file={config}",
        f"--storage.tsdb.path={tmp_path / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(60), aiohttp.ClientSession() as client:
            received = await known(client, port, RECEIVED, 2)
            relays_shown = await known(client, port, "chappe_relays", 1)
            up = await known(client, port, "up == 1", 3)
    finally:
        process.kill()
        await process.wait()
    assert {series["metric"]["instance"] for series in received} == set(targets[1:])
    assert {series["metric"]["instance"] for series in relays_shown} == {targets[0]}
    assert {series["metric"]["instance"] for series in up} == set(targets)


async def known(client: aiohttp.ClientSession, port: int, query: str, instances: int) -> list[dict[str, Any]]:
    """Prometheus has no event for "scraped": ask until it knows so many instances."""
    while True:
        try:
            async with client.get(f"http://127.0.0.1:{port}/api/v1/query", params={"query": query}) as reply:
                if reply.status == 200:
                    result: list[dict[str, Any]] = (await reply.json())["data"]["result"]
                    if len({series["metric"]["instance"] for series in result}) >= instances:
                        return result
        except aiohttp.ClientConnectionError:
            pass  # not up yet
        await asyncio.sleep(10 * POLL_S)


async def test_sigterm_in_the_middle_ends_a_relay_well_and_its_child_goes_on(tmp_path: Path) -> None:
    source = make_snapshot(tmp_path / "model", 8 * MB, seed=5)
    size = payload_bytes(source)
    async with (
        LocalFleet(tmp_path / "fleet", relays(3)) as fleet,
        AsyncPublisher(fleet.address, uplink="12mbit", limit_uplink="12mbit") as publisher,
    ):
        publication = await publisher.publish(source, chains=1)
        for name in ("w3", "w2", "w1"):
            await metric_reaches(fleet.workers[name], RECEIVED, MB)
        (chain,) = (await fleet.status()).publications[0].chains
        head, *rest = chain.names
        await metric_reaches(fleet.workers[head], 'relayd_hop_bytes_per_second{direction="downlink"}', 1.0)
        assert await fleet.workers.pop(head).stop(timeout_s=30) == 0  # it was not killed
        result = await publication.wait(timeout_s=60)
        assert (result.installed, result.lost, result.chains) == (2, (head,), (tuple(rest),))
        for process in fleet.workers.values():
            assert (await metrics(process))[RECEIVED] <= size + MB
        assert_same_bytes(fleet, source, *rest)
