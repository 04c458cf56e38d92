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


def test_what_arrives_as_it_was_sent_lowers_b0_when_it_goes_on(fleet: Script) -> None:
    fleet.play("hop o a got=65mbit sent=-\nhop o b got=70mbit sent=-\nhop o c got=66mbit sent=-\n")
    fleet.play("sends o a=66mbit b=68mbit c=70mbit\n")
    assert b0_mbit(fleet) == 0  # a pause looks like this, too
    fleet.play("sends o a=66mbit b=68mbit c=70mbit\n")
    assert b0_mbit(fleet) == 257.9  # from the 300 that were declared, 4 s of the way to 201


def test_an_origin_that_keeps_up_with_a_head_is_not_the_limit(fleet: Script) -> None:
    """It waits for it, or for its own hashing: the others' sum is not all that its uplink carries."""
    party = fleet.party("o")
    rates = {"a": (66 * MBIT, 2.0), "b": (66 * MBIT, 2.0), "c": (0.0, 0.0)}
    samples = [LinkSample(f"id-{name}", True, rate, busy_s, 3, 900) for name, (rate, busy_s) in rates.items()]
    fleet.tell(LinksMeasured(party.worker_id, party.session, tuple(samples)))
    assert b0_mbit(fleet) == 0


def test_a_moment_in_which_a_hop_kept_up_with_its_source_ends_nothing(fleet: Script) -> None:
    """A slow link has such moments, too; and what its sender said of two streams holds on."""
    party, origin = fleet.party("a"), fleet.party("o")
    for rate, busy_s in [(20 * MBIT, 0.5)] * 3 + [(0.0, 0.0), (20 * MBIT, 0.0)]:
        fleet.do_wait("0.5")
        fleet.tell(LinksMeasured(origin.worker_id, origin.session, (LinkSample("id-a", True, rate, busy_s, 3),)))
        fleet.tell(LinksMeasured(party.worker_id, party.session, (LinkSample("id-o", False, rate, busy_s),)))
    (hop,) = fleet.fleet._slow._hops.values()
    assert hop.low
    assert fleet.fleet._measuring._sent["id-o", "id-a"].sample.bytes_per_s == 20 * MBIT
    links = fleet.fleet.state.workers["id-a"].links
    assert (links.down.bytes_per_s, b0_mbit(fleet)) == (0.0, 0.0)


def test_what_was_carried_beside_another_stream_is_no_measure_of_an_uplink() -> None:
    """The sender had two for a second, and says nothing of that any more when the receiver reports its two seconds."""
    script = Script()
    script.play("relay a b up=200mbit down=100mbit\norigin o up=100mbit\npublish o v=1 chains=1\n")
    script.play("offer o 1 bytes=1000000000\nreceiving 1 a b chunks=10\nhop a b got=95mbit times=3\n")
    a, b = script.party("a"), script.party("b")
    script.do_wait("1")
    script.tell(LinksMeasured(a.worker_id, a.session, (LinkSample("id-b", True, 80 * MBIT, 1.0, 2),)))
    script.do_wait("1")
    script.tell(LinksMeasured(a.worker_id, a.session, (LinkSample("id-b", True, 95 * MBIT, 0.5, 1),)))
    before = script.fleet.state.workers["id-a"].links.up.bytes_per_s
    script.tell(
        LinksMeasured(
            b.worker_id, b.session, (LinkSample("id-o", False, 0.0, 0.0), LinkSample("id-a", False, 80 * MBIT, 2.0))
        )
    )
    assert script.fleet.state.workers["id-a"].links.up.bytes_per_s == before


def says(script: Script, sender: str, receiver: str, rate: float, busy_s: float, streams: int = 1) -> None:
    """What both ends say of a hop, the receiver first."""
    for node, peer, sending in ((receiver, sender, False), (sender, receiver, True)):
        party = script.party(node)
        sample = LinkSample(f"id-{peer}", sending, rate, busy_s, streams if sending else 1)
        script.tell(LinksMeasured(party.worker_id, party.session, (sample,)))


def test_a_tenth_of_a_second_after_a_pause_hardly_moves_what_was_declared() -> None:
    """A relay that differs by more than 10 % makes a fleet an unequal one, whose chains are laid in another way."""
    script = Script()
    script.play("relay a b c up=10mbit down=10mbit\norigin o up=10mbit\npublish o v=1\n")
    script.play("offer o 1 bytes=100000000\nreceiving 1 a b c chunks=10\n")
    says(script, "a", "b", 0.864e6, 0.1)
    figure = script.fleet.state.workers["id-a"].links.up.bytes_per_s
    assert figure == pytest.approx(1.25e6, rel=0.01)
    for _ in range(10):
        says(script, "a", "b", 0.864e6, 2.0)
    assert script.fleet.state.workers["id-a"].links.up.bytes_per_s == pytest.approx(0.864e6, rel=0.05)
