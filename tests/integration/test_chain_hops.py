"""The hop: cut-through along a chain, memory that does not grow, and a child that stops reading."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
from pathlib import Path

import pytest

from chappe.cli.localfleet import LocalFleet
from chappe.hop.source import Signal
from chappe.origin.source import OriginObject
from chappe.publisher import AsyncPublisher
from tests.integration.fleet_tools import (
    assert_same_bytes,
    make_snapshot,
    memory_bytes,
    metric_reaches,
    metrics,
    relays,
)

RECEIVED = "relayd_received_bytes_total"


class HalfWay:
    """A gate that holds the origin at a share of the payload until it is opened."""

    def __init__(self, chunks: int) -> None:
        self.chunks = chunks
        self.opened = Signal()

    async def wait(self, chunks: int) -> None:
        if chunks > self.chunks:
            await self.opened.wait(0)


async def test_every_hop_holds_what_the_origin_has_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain of 4, the origin held at half of the payload: each relay has 45 % or more before the rest is there."""
    source = make_snapshot(tmp_path / "model", 32 << 20, seed=1)
    size = sum(p.stat().st_size for p in source.rglob("*") if p.is_file())
    gate = HalfWay(chunks=size // 2 // (64 << 10))
    monkeypatch.setattr("chappe.origin.job.OriginObject", functools.partial(OriginObject, gate=gate))
    async with (
        LocalFleet(tmp_path / "fleet", relays(4, "--downlink", "50mbit", "--uplink", "50mbit")) as fleet,
        AsyncPublisher(fleet.address, uplink="50mbit") as publisher,
    ):
        publication = await publisher.publish(source, version=1)
        for process in fleet.workers.values():
            assert await metric_reaches(process, RECEIVED, 0.45 * size) < 0.6 * size
        status = await fleet.wait_status(lambda s: bool(s.publications[0].chains))
        (chain,) = status.publications[0].chains
        assert sorted(chain.names) == ["w1", "w2", "w3", "w4"]  # as they have joined
        assert not (fleet.store("w1") / "current").exists()
        for process in fleet.workers.values():
            await metric_reaches(process, 'relayd_hop_transport{direction="downlink",transport="tcp"}', 1)
        gate.opened.fire()
        result = await publication.wait(1.0, timeout_s=60)
        await fleet.wait_status(lambda s: all(r.transport == "tcp" for r in s.relays if r.name != chain.names[0]))
        assert result.installed == 4
        assert_same_bytes(fleet, source, *fleet.workers)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("transport", "size"),
    [
        pytest.param("auto", 1 << 30, id="auto"),
        pytest.param("auto", 4 << 30, id="auto-4GiB", marks=pytest.mark.soak),
        pytest.param("grpc", 4 << 30, id="grpc-4GiB", marks=pytest.mark.soak),
    ],
)
async def test_memory_does_not_grow_with_the_payload(tmp_path: Path, transport: str, size: int) -> None:
    """A sparse snapshot of seven times as much, or more, through two relays: the highest RSS stays under 150 MB."""
    source = tmp_path / "model.safetensors"
    elements = size - 128
    header = f'{{"w":{{"dtype":"U8","shape":[{elements}],"data_offsets":[0,{elements}]}}}}'.encode()
    header += b" " * (120 - len(header))
    with source.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(size)
        for at in range(200, size, 512 << 20):
            os.pwrite(file.fileno(), b"not only zeros", at)
    async with (
        LocalFleet(
            tmp_path / "fleet", relays(2, "--downlink", "10gbit", "--uplink", "10gbit", "--transport", transport)
        ) as fleet,
        AsyncPublisher(fleet.address, uplink="10gbit") as publisher,
    ):
        result = await (await publisher.publish(source, version=1, payload="full")).wait(1.0, timeout_s=500)
        assert result.installed == 2
        assert result.payload_bytes == size
        for process in fleet.workers.values():
            assert memory_bytes(process, "VmHWM") < 150e6
        assert_landed_size(fleet, size)


def assert_landed_size(fleet: LocalFleet, size_bytes: int) -> None:
    for name in fleet.workers:
        assert (fleet.store(name) / "current" / "model.safetensors").stat().st_size == size_bytes


async def test_a_stopped_child_costs_its_parent_nothing(tmp_path: Path) -> None:
    """SIGSTOP to the child in the middle: the parent finishes all the same, with the memory it had."""
    source = make_snapshot(tmp_path / "model", 48 << 20, seed=2)
    async with (
        LocalFleet(tmp_path / "fleet", relays(2, "--downlink", "1gbit", "--uplink", "1gbit")) as fleet,
        AsyncPublisher(fleet.address, uplink="80mbit", limit_uplink="80mbit") as publisher,
    ):
        publication = await publisher.publish(source, version=1, chains=1)
        status = await fleet.wait_status(lambda s: any(p.chains for p in s.publications))
        (chain,) = status.publications[0].chains
        head, tail = (fleet.workers[name] for name in chain.names)
        await metric_reaches(tail, RECEIVED, 12 << 20)
        before = memory_bytes(head)
        tail.send_signal(signal.SIGSTOP)
        try:
            await fleet.wait_status(lambda s: any(r.name == chain.names[0] and r.installed == 1 for r in s.relays))
            assert memory_bytes(head) < before + (16 << 20)
            assert (await metrics(head))["relayd_forwarded_bytes_total"] < 40 << 20
        finally:
            tail.send_signal(signal.SIGCONT)
        await fleet.wait_status(lambda s: all(r.installed == 1 for r in s.relays))
        assert_same_bytes(fleet, source, "w1", "w2")
        await asyncio.wait_for(publication.wait(0.5), 30)
