"""Settings that hold for every test."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

# These machines are shared: no test asserts a time, hypothesis included. What lands must not hang on luck: everybody
# runs the same examples, unless new ones are asked for.
settings.register_profile(
    "chappe",
    deadline=None,
    derandomize=not os.environ.get("CHAPPE_NEW_EXAMPLES"),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("chappe")


@pytest.fixture(autouse=True, scope="session")
def base_cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """`chappe publish` keeps its base in the user's cache folder: not in that of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHAPPE_BASE_CACHE", str(tmp_path_factory.mktemp("base-cache")))
        yield


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """A command that runs in this process sets logging up for the stderr of its test: that must not outlive it."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    configured = structlog.get_config() if structlog.is_configured() else None
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    if configured is None:
        structlog.reset_defaults()
    else:
        structlog.configure(**configured)


@pytest.fixture
def short_directory() -> Iterator[Path]:
    """The path of a relay's socket has at most 107 bytes, and `tmp_path` may have many of them."""
    with tempfile.TemporaryDirectory(prefix="chappe-") as directory:
        yield Path(directory)
