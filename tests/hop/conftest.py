"""Fixtures of hops over real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from chappe.hop.net import Tls, load_tls
from chappe.keys import init_fleet, issue


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as opened:
        yield opened


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
