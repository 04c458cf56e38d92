"""What reports say of the origin's uplink while its hops come and go, and what one without a rate says."""

from __future__ import annotations

import pytest
from fleet_script import Script

from chappe.core.events import LinkSample, LinksMeasured

FLEET = """
relay a b up=100mbit down=100mbit
relay c up=100mbit down=-
origin o up=300mbit
publish o v=1 chains=3
offer o 1 bytes=1000000000
receiving 1 a b c chunks=10
"""
MBIT = 125_000.0


@pytest.fixture
def fleet() -> Script:
    script = Script()
    script.play(FLEET)
    return script


def b0_mbit(fleet: Script) -> float:
    return round(fleet.fleet.state.workers["id-o"].links.up.bytes_per_s / MBIT, 1)


def test_a_mean_of_other_seconds_does_not_lower_b0(fleet: Script) -> None:
    """The other heads have died: the last one has all of its downlink, and its own report is half of before."""
    fleet.play("hop o a got=60mbit sent=60mbit streams=3\nhop o b got=60mbit sent=60mbit streams=3\n")
    fleet.play("hop o a got=65mbit sent=-\nsends o a=100mbit\n")
    assert b0_mbit(fleet) == 0  # nothing is measured: as it was declared


def test_heads_that_have_just_begun_do_not_lower_b0(fleet: Script) -> None:
    """What is known of them is from before they went away, when more of them shared the uplink."""
    fleet.play("hop o a got=75mbit sent=-\nhop o b got=62mbit sent=-\nhop o c got=62mbit sent=-\n")
    fleet.play("sends o a=80mbit b=80mbit c=80mbit\n")
    assert b0_mbit(fleet) == 0


def test_what_arrives_as_it_was_sent_lowers_b0(fleet: Script) -> None:
    fleet.play("hop o a got=65mbit sent=-\nhop o b got=70mbit sent=-\nhop o c got=66mbit sent=-\n")
    fleet.play("sends o a=66mbit b=68mbit c=70mbit\n")
    assert b0_mbit(fleet) == 199


def test_an_origin_that_keeps_up_with_a_head_is_not_the_limit(fleet: Script) -> None:
    """It waits for it, or for its own hashing: the others' sum is not all that its uplink carries."""
    party = fleet.party("o")
    rates = {"a": (66 * MBIT, 2.0), "b": (66 * MBIT, 2.0), "c": (0.0, 0.0)}
    samples = [LinkSample(f"id-{name}", True, rate, busy_s, 3, 900) for name, (rate, busy_s) in rates.items()]
    fleet.tell(LinksMeasured(party.worker_id, party.session, tuple(samples)))
    assert b0_mbit(fleet) == 0


def test_a_hop_that_kept_up_with_its_source_is_not_slow(fleet: Script) -> None:
    """Its run of slow samples is over, and neither link has anything to answer for."""
    party = fleet.party("a")
    seen = []
    for rate, busy_s in [(20 * MBIT, 0.5)] * 3 + [(0.0, 0.0)]:
        fleet.do_wait("0.5")
        fleet.tell(LinksMeasured(party.worker_id, party.session, (LinkSample("id-o", False, rate, busy_s),)))
        (hop,) = fleet.fleet._slow._hops.values()
        seen.append(hop.low)
    assert seen == [True, True, True, False]
    links = fleet.fleet.state.workers["id-a"].links
    assert (links.down.bytes_per_s, b0_mbit(fleet)) == (0.0, 0.0)
