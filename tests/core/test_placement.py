"""Where joiners go when nothing is as planned."""

from __future__ import annotations

import json

from fleet_script import Script

from chappe.core.fleet import FleetState
from chappe.core.invariants import broken
from chappe.core.placement import Placement


def two_chains() -> Script:
    script = Script()
    script.play(
        "relay a b c d\norigin o up=200mbit\npublish o v=1\noffer o 1 bytes=1000000000\nreceiving 1 a b chunks=40\n"
    )
    return script


def test_no_chain_is_fed_and_the_origin_still_serves_no_more_than_planned() -> None:
    script = two_chains()
    publication = script.fleet.state.publications["o1"]
    for chain in publication.layout.chains:
        chain.rooted = True  # as if their heads held everything, and they do not
    assert not any(Placement(script.fleet._context).fed(publication, c) for c in publication.layout.chains)
    script.do_relay("e", "f", "g")
    assert [chain.slot for chain in publication.layout.chains] == [0, 1]
    assert publication.streams_max == 2
    assert not broken(script.fleet)


def test_the_invariant_sees_one_chain_too_many() -> None:
    script = two_chains()
    publication = script.fleet.state.publications["o1"]
    publication.layout.open_slot(0)
    assert broken(script.fleet) == ["v1: 3 chains in stripe 0, 2 are planned"]


def test_a_restored_version_has_its_slots() -> None:
    script = two_chains()
    script.play("root o 1\norigin p up=200mbit\npublish p v=2\noffer p 2 bytes=1000000000\n")
    script.play("root p 2\ninstalled 2 a b c d\n")
    old = script.fleet.state.publications["o1"]
    assert old.retired
    assert [(chain.slot, chain.members) for chain in old.layout.chains] == [(0, []), (1, [])]


def test_rows_written_before_there_were_cases_are_read() -> None:
    script = two_chains()
    stored = json.loads(json.dumps(script.fleet.state.to_json()))
    for publication in stored["publications"]:
        del publication["cases"], publication["streams_max"]
    (restored,) = FleetState.from_json(stored).publications.values()
    assert (restored.cases, restored.streams_max) == ({}, 0)
