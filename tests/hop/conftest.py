"""Fixtures of hops over real sockets, and of a store on a disk that can fail."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from storekit import FaultyDisk

from chappe.hop.net import Tls, load_tls
from chappe.hop.store import Store
from chappe.keys import init_fleet, issue


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as opened:
        yield opened


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def store(tmp_path: Path, disk: FaultyDisk) -> Iterator[Store]:
    with Store.open(tmp_path / "store", disk) as opened:
        yield opened
        disk.heal()


@pytest.fixture(scope="module")
def fleet_tls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tls]:
    directory = tmp_path_factory.mktemp("keys")
    init_fleet(directory)
    found = {}
    for name in ("parent", "child", "other"):
        files = issue(directory, name)
        tls = load_tls(files.cert, files.key, files.ca)
        assert tls is not None
        found[name] = tls
    return found
