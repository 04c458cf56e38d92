"""What a relay loads before it is of use: its start and its idle memory are made of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"aiohttp", "matplotlib", "numpy", "safetensors", "scipy", "sqlalchemy", "torch"}


@pytest.mark.parametrize("modules", ["relayd.__main__, relayd.daemon", "chappe.cli.main", "chappe.cli.status"])
def test_nothing_heavy_is_loaded_that_may_never_be_used(modules: str) -> None:
    program = f"import {modules}, sys; print(*sorted({HEAVY!r} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
