"""Every text scenario gives the answers written in it. `CHAPPE_REWRITE=1` writes them instead, to be read first."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from fleet_script import Script

SCENARIOS = Path(__file__).parent.parent / "scenarios"
FILES = sorted(SCENARIOS.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    written = path.read_text()
    played = Script().play(written)
    if os.environ.get("CHAPPE_REWRITE") == "1":
        path.write_text(played)
    else:
        assert played == written


def test_every_row_of_the_list_has_its_scenario() -> None:
    rows = [line for line in (SCENARIOS / "README.md").read_text().splitlines() if line.startswith("| ")]
    named = {re.split(r"\s*\|\s*", row.strip("| "))[-1] for row in rows} - {"scenario"}
    assert named == {path.stem for path in FILES}
