"""A coordinator, relays that fetch in memory, and a publisher."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from relay_fake import FakeRelay

from chappe import AsyncPublisher
from chappe.coordinator.config import CoordinatorSettings
from chappe.coordinator.daemon import Coordinator, open_coordinator


@pytest.fixture
def settings(tmp_path: Path) -> CoordinatorSettings:
    return CoordinatorSettings(listen="127.0.0.1:0", state=f"sqlite:///{tmp_path}/state.db", run="run-1")


@pytest.fixture
async def coordinator(settings: CoordinatorSettings) -> AsyncIterator[Coordinator]:
    async with open_coordinator(settings) as opened:
        yield opened


@pytest.fixture
async def relays(coordinator: Coordinator) -> AsyncIterator[list[FakeRelay]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(FakeRelay(f"w{i}", str(coordinator.address))) for i in range(2)]


@pytest.fixture
async def publisher(coordinator: Coordinator, tmp_path: Path) -> AsyncIterator[AsyncPublisher]:
    async with AsyncPublisher(str(coordinator.address), spool=tmp_path, base_cache=False) as opened:
        yield opened
