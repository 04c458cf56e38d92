"""Which reports of an origin lower what is known of its uplink, and so may take a chain from the next version.

| its heads carry                                        | then |
|--------------------------------------------------------|------|
| what 10 Mbit/s carry, in reports of half a second      | nothing: they are the limit. The noise is that of a run |
| next to nothing, for two seconds                       | nothing: a pause |
| little, the last one at the end of a version           | nothing: the others have what they need |
| a burst of a token bucket, a tail into socket buffers  | nothing |
| more than was declared, for seconds                    | it is raised |
| half of what was declared, for four seconds            | a chain is taken |
| half of it, in deltas of a second each                 | the same, after some versions |
| less than they could take, the origin declared nothing | the first report counts |
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from fleet_script import Script

from chappe.core.events import LinkSample, LinksMeasured
from chappe.core.origin_uplink import SPELL_S, Carried, UplinkEvidence
from chappe.core.rates import Figure, Source, uplink
from chappe.planning.topology import chain_count

BW, GOODPUT = 1.25e6, 1.19e6  # of 10 Mbit/s; what frames leave of it
B0 = 2 * BW
MEASURED = [  # while the link carried 2.38 MB/s: each head's rate as sent (MB/s), busy seconds, and as received
    ((1.08, 0.55), (1.12, 1.0), (1.16, 1.09)),
    ((1.25, 0.47), (1.13, 0.46), (1.16, 1.09)),
    ((1.05, 0.5), (1.16, 0.57), (1.16, 1.09)),
    ((1.22, 0.43), (1.16, 0.45), (1.19, 1.14)),
    ((1.24, 0.58), (1.13, 0.46), (1.19, 1.14)),
    ((1.2, 0.49), (1.29, 0.56), (1.19, 1.14)),
    ((1.35, 0.53), (1.1, 1.01), (1.17, 1.11)),
    ((0.91, 0.72), (1.15, 0.46), (1.24, 1.11)),
    ((1.17, 0.44), (0.89, 0.52), (1.18, 1.18)),
    ((1.09, 0.48), (0.77, 0.6), (1.22, 1.01)),
    ((0.93, 0.42), (1.13, 0.58), (1.19, 0.94)),
    ((1.23, 0.53), (1.53, 0.51), (1.19, 1.17)),
]


@pytest.fixture
def fleet() -> Script:
    """Eight workers behind 10 Mbit/s, and the uplink carries two of them: a and b are the heads."""
    script = Script()
    script.play("relay a b c d e f g h up=10mbit down=10mbit\norigin o up=20mbit\n")
    script.play("publish o v=1\noffer o 1 bytes=100000000\nreceiving 1 a b chunks=10\n")
    return script


def tell(script: Script, node: str, samples: Iterable[LinkSample]) -> None:
    party = script.party(node)
    script.tell(LinksMeasured(party.worker_id, party.session, tuple(samples)))


def sent(script: Script, **heads: tuple[float, float]) -> None:
    """The origin's report: by head, bytes per second and busy seconds."""
    tell(script, "o", [LinkSample(f"id-{head}", True, *said, len(heads)) for head, said in heads.items()])


def got(script: Script, **heads: tuple[float, float]) -> None:
    for head, said in heads.items():
        tell(script, head, [LinkSample("id-o", False, *said)])


def b0(script: Script) -> float:
    return uplink(script.fleet.state.workers["id-o"], 12.5e6, script.now).bytes_per_s


def chains(script: Script) -> int:
    """For eight workers, nothing being known of how many there were before."""
    return chain_count(b0(script), GOODPUT, 8)


def test_the_noise_of_half_a_second_takes_no_chain(fleet: Script) -> None:
    for a, b, (at_a, at_b) in MEASURED:
        fleet.do_wait("0.5")
        got(fleet, a=(at_a * 1e6, a[1]), b=(at_b * 1e6, b[1]))
        sent(fleet, a=(a[0] * 1e6, a[1]), b=(b[0] * 1e6, b[1]))
        assert chains(fleet) == 2


def test_a_pause_takes_no_chain(fleet: Script) -> None:
    for rate in (GOODPUT, 0.3 * GOODPUT, GOODPUT, GOODPUT):
        fleet.do_wait("2")
        got(fleet, a=(rate, 2.0), b=(rate, 2.0))
        sent(fleet, a=(rate, 2.0), b=(rate, 2.0))
        assert chains(fleet) == 2


def test_the_last_head_says_nothing_of_all_that_the_uplink_carries(fleet: Script) -> None:
    for _ in range(5):
        fleet.do_wait("2")
        sent(fleet, b=(0.85 * GOODPUT, 2.0))
        assert b0(fleet) == B0


def test_bursts_do_not_count(fleet: Script) -> None:
    """They would in the end: nothing ever lowers a figure again while the heads are the limit."""
    for _ in range(20):
        fleet.do_wait("5")
        got(fleet, a=(1.21e6, 0.26), b=(1.43e6, 0.2))
        sent(fleet, a=(1.53e6, 0.25), b=(1.5e6, 0.23))
        sent(fleet, a=(1.97e6, 0.05), b=(2.78e6, 0.01))
        sent(fleet, a=(5.45e6, 0.1))
    assert b0(fleet) == B0


def test_more_than_was_declared_raises_it(fleet: Script) -> None:
    for _ in range(4):
        fleet.do_wait("2")
        got(fleet, a=(1.8e6, 2.0), b=(1.8e6, 2.0))
        sent(fleet, a=(1.8e6, 2.0), b=(1.8e6, 2.0))
    assert b0(fleet) == pytest.approx(3.6e6, rel=0.15)


def test_half_of_it_is_noticed_after_four_seconds(fleet: Script) -> None:
    for seconds in (2, 4, 6):
        fleet.do_wait("2")
        got(fleet, a=(GOODPUT / 2, 2.0), b=(GOODPUT / 2, 2.0))
        sent(fleet, a=(GOODPUT / 2, 2.0), b=(GOODPUT / 2, 2.0))
        assert chains(fleet) == (2 if seconds < 4 else 1)


def test_half_of_it_is_noticed_in_short_deltas(fleet: Script) -> None:
    """Each is a second, at the end of which one head is alone for a moment."""
    for _ in range(4):
        fleet.do_wait("60")
        got(fleet, a=(GOODPUT / 2, 0.8), b=(GOODPUT / 2, 0.7))
        sent(fleet, a=(GOODPUT / 2, 0.8), b=(GOODPUT / 2, 0.75))
        sent(fleet, b=(0.9 * GOODPUT, 0.1))
    assert chains(fleet) == 1


def test_an_origin_that_has_declared_nothing_is_measured_by_its_first_report() -> None:
    evidence, assumed = UplinkEvidence(), Figure(12.5e6, Source.ASSUMED)
    short = Carried(0.1, 2e6, 2e6, 3e6)
    assert evidence.take(short, assumed, 1.0) is short
    assert evidence.take(Carried(0.1, 2.4e6, 2.4e6, 2.5e6), assumed, 1.0) is None  # a lower bound
    more = Carried(0.1, 13e6, 13e6, 13e6)
    assert evidence.take(more, assumed, 1.0) is more


def test_what_lasted_counts_once() -> None:
    evidence, figure = UplinkEvidence(), Figure(B0, Source.DECLARED)
    low, lower = Carried(SPELL_S, 1.6e6, 1.6e6, B0), Carried(SPELL_S, 1.2e6, 1.2e6, B0)
    assert evidence.take(low, figure, 1.0) is None
    found = [evidence.take(lower, figure, now) for now in (3.0, 5.0)]
    assert [(one.bytes_per_s, one.busy_s) for one in found if one] == [(1.6e6, 2 * SPELL_S), (1.2e6, SPELL_S)]


@pytest.mark.parametrize(
    "between",
    [Carried(SPELL_S, B0, B0, B0), Carried(SPELL_S, 0.95 * B0, 0.95 * B0, B0)],
    ids=["as much as is known", "what the heads can take"],
)
def test_a_good_moment_between_two_low_ones(between: Carried) -> None:
    evidence, figure = UplinkEvidence(), Figure(B0, Source.DECLARED)
    low = Carried(SPELL_S, 1.2e6, 1.2e6, B0)
    for now in (1.0, 5.0, 9.0):
        assert evidence.take(low, figure, now) is None
        evidence.take(between, figure, now + 2)


def test_what_did_not_arrive_and_what_was_yesterday_is_no_evidence() -> None:
    evidence, figure = UplinkEvidence(), Figure(B0, Source.DECLARED)
    low = Carried(SPELL_S, 1.2e6, 1.2e6, B0)
    assert evidence.take(low, figure, 1.0) is None
    assert evidence.take(Carried(SPELL_S, 2.4e6, 1.2e6, B0), figure, 3.0) is None
    assert evidence.take(low, figure, 90_000.0) is None
    assert evidence.take(low, figure, 90_002.0) is not None
