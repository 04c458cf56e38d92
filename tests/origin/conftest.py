"""Fixtures of tests of encoders."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from chappe.origin.encoders import Encoders
from chappe.origin.hashing import hash_snapshot
from chappe.origin.scan import Snapshot
from chappe.origin.steps import Base
from tests.origin.encoderkit import all_are_up, snapshot


@pytest.fixture
def two(tmp_path: Path) -> tuple[Base, Snapshot]:
    kept = snapshot(tmp_path / "base")
    return Base(hash_snapshot(kept), (1,), kept), snapshot(tmp_path / "target", 0.01)


@pytest.fixture
def running() -> Iterator[Encoders]:
    """Two processes that are up."""
    with closing(Encoders(2)) as made:
        made.start()
        all_are_up(made)
        yield made
