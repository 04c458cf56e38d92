"""Who leaves is looked at when something has changed for it, not at each event of a fleet."""

from __future__ import annotations

import pytest
from fleet_script import Script

from chappe.core.departure import Departure


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Children that were looked at, in order."""
    seen: list[str] = []
    look = Departure._still_fed_by

    def counted(self: Departure, parent_id: str, object_id: str, stripe: int, child_id: str) -> bool:
        seen.append(child_id)
        return look(self, parent_id, object_id, stripe, child_id)

    monkeypatch.setattr(Departure, "_still_fed_by", counted)
    return seen


def leaving() -> Script:
    """a - b - c - d in one chain, all streams there; a and c have asked to leave."""
    script = Script()
    script.play(
        "relay a b c d\norigin o up=100mbit\npublish o v=1\noffer o 1 bytes=1000000000\n"
        "parent-connected a 1\nparent-connected b 1\nparent-connected c 1\nparent-connected d 1\n"
        "receiving 1 a b c d chunks=40\nleave a\nleave c\n"
    )
    return script


def told(script: Script, line: str) -> list[str]:
    script.lines = []
    script.run(line.split())
    return [said for said in script.lines if said.startswith("release")]


def test_events_of_others_look_at_nobody(looks: list[str]) -> None:
    script = leaving()
    looks.clear()
    script.play("relay e\nreceiving 1 e chunks=1\n")
    assert looks == []


def test_each_goes_when_its_own_child_has_moved(looks: list[str]) -> None:
    script = leaving()
    looks.clear()
    assert told(script, "parent-connected b 1") == ["release a"]
    assert set(looks) == {"id-b"}
    assert told(script, "parent-connected d 1") == ["release c"]


def test_one_whose_child_does_not_move_goes_when_its_time_is_over() -> None:
    script = leaving()
    script.play("parent-connected b 1\n")
    script.lines = []
    script.do_wait("4")
    assert [said for said in script.lines if said.startswith("release")] == ["release c"]


def test_a_child_that_dies_holds_nobody_back() -> None:
    script = leaving()
    script.play("parent-connected b 1\n")
    assert told(script, "lost d") == ["release c"]
