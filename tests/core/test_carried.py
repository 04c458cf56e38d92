"""What a side's reports say of its link: each kind of trouble that is, and that is not, a link that carries less."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from chappe.core.carried import Carried, Short
from chappe.core.events import LinkSample

STREAMS = Counter({"a": 3, "b": 2})
WANTED = Counter({"a": 600_000, "b": 400_000})
CHUNK = 1 << 16

Said = tuple[float, dict[str, tuple[float, float]]]
"""Seconds since the report before, and of each peer what it carried in them, and for which share of them it waited."""


def told(reports: Sequence[Said], *, wanted: Counter[str] = WANTED) -> list[Short | None]:
    """What is said after each report. The first one only says when telling begins."""
    carried = Carried()
    carried.take(0.0, [], STREAMS, wanted)
    found = []
    for wall_s, peers in reports:
        samples = []
        for peer, (share, waited) in peers.items():
            size, busy_s = share * wanted[peer] * wall_s, waited * STREAMS[peer] * wall_s
            rate = size / busy_s if busy_s else 0.0
            samples.append(LinkSample(peer, True, rate, busy_s, sum(STREAMS.values()), round(size)))
        carried.take(wall_s, samples, STREAMS, wanted)
        found.append(carried.short())
    return found


def both(share: float, waited: float = 1.0, wall_s: float = 2.0) -> Said:
    return wall_s, {"a": (share, waited), "b": (share, waited)}


def test_half_of_what_is_wanted_shows_after_three_reports() -> None:
    *before, last = told([both(0.5)] * 3)
    assert before == [None, None]
    assert last is not None
    assert last.bytes_per_s == pytest.approx(500_000)
    assert last.peers == {"a", "b"}


def test_reports_that_come_often_count_for_the_time_between_them() -> None:
    found = told([both(0.5, wall_s=1.0)] * 4)
    assert [short is not None for short in found] == [False, False, False, True]


def test_a_share_of_turns_that_others_did_not_need_does_not_hide_it() -> None:
    """Three streams to one peer, of which a third always has nothing to send: what one carries while it is busy, times
    three, is more than the link carries."""
    last = told([both(0.5, 0.65)] * 3)[-1]
    assert last is not None
    assert last.bytes_per_s == pytest.approx(500_000)


@pytest.mark.parametrize(
    "reports",
    [
        [both(0.75)] * 6,
        [both(0.5, 0.2)] * 6,
        [both(0.1), both(0.3), both(0.6)],
        [both(0.55, 0.5)] * 6,
        [both(1.0), both(0.15, wall_s=2.9), both(1.0), both(1.0), both(1.0)],
        [both(1.0, wall_s=1.0)] * 3 + [both(0.3, wall_s=2.5)] + [both(1.0, wall_s=1.0)] * 4,
        [both(0.0, 0.0), both(0.1, 0.1), both(0.95), both(1.0), both(0.9)],
        [both(0.5), both(1.0)] * 5,
        [(2.0, {"a": (0.5, 1.0), "b": (1.0, 0.3)})] * 6,
        [(2.0, {"a": (0.4, 1.0), "b": (0.5, 0.0)})] * 6,
        [(2.0, {"a": (0.4, 1.0)})] * 6,
    ],
    ids=[
        "a little less",
        "its source is slow",
        "it begins",
        "its source comes and goes",
        "it paused",
        "it paused between frequent reports",
        "its source paused",
        "every second report",
        "one peer is well",
        "one peer has nothing to wait for",
        "one peer is not heard",
    ],
)
def test_what_is_no_evidence(reports: list[Said]) -> None:
    assert told(reports) == [None] * len(reports)


BACK, FORTH = 2.5, 0.5
"""Seconds by which peers are behind: far, and as they always are."""


@pytest.mark.parametrize(
    ("shares", "behind_s", "found"),
    [
        ([0.5, 0.5, 0.5, 0.5], [FORTH, FORTH, BACK, BACK], [False, False, False, True]),
        ([0.5, 0.5, 0.5, 0.5], [BACK, BACK, BACK, BACK], [False, False, True, True]),
        ([0.5] * 5, [1.5] * 5, [False] * 5),
        ([0.5, 0.5, 0.3, 0.5], [FORTH, FORTH, BACK, FORTH], [False] * 4),
        ([0.3, 0.1, 0.2, 0.95, 1.0], [FORTH, FORTH, BACK, BACK, FORTH], [False] * 5),
        ([1.0, 1.0, 1.0, 1.0], [BACK] * 4, [False] * 4),
    ],
    ids=["the queues are full", "all the time", "not far", "once", "its source paused", "and carries all the same"],
)
def test_who_is_far_behind_waits_although_no_socket_does(
    shares: list[float], behind_s: list[float], found: list[bool]
) -> None:
    carried = Carried()
    carried.take(0.0, [], STREAMS, WANTED)
    said = []
    for share, seconds in zip(shares, behind_s, strict=True):
        samples = [LinkSample(p, True, 2.0 * WANTED[p], 0.1, 5, round(2 * share * WANTED[p])) for p in WANTED]
        behind = {peer: seconds * WANTED[peer] for peer in WANTED}
        carried.take(2.0, samples, STREAMS, WANTED, behind, CHUNK)
        said.append(carried.short() is not None)
    assert said == found


def test_a_chunk_of_each_stream_is_always_on_its_way() -> None:
    carried, wanted = Carried(), Counter({"a": 30_000, "b": 20_000})
    for wall_s in (0.0, 2.0, 2.0, 2.0):
        samples = [LinkSample(p, True, 2.0 * wanted[p], 0.1, 5, wanted[p]) for p in wanted]
        carried.take(wall_s, samples, STREAMS, wanted, {p: 3.0 * wanted[p] for p in wanted}, CHUNK)
        assert carried.short() is None


def test_a_small_part_may_be_well() -> None:
    wanted = Counter({"a": 600_000, "b": 300_000, "c": 100_000})
    carried, streams = Carried(), Counter({"a": 2, "b": 2, "c": 1})
    for wall_s in (0.0, 2.0, 2.0, 2.0):
        samples = [
            LinkSample(p, True, s * wanted[p] / streams[p], 2.0 * streams[p], 5, round(2 * s * wanted[p]))
            for p, s in {"a": 0.5, "b": 0.5, "c": 1.0}.items()
        ]
        carried.take(wall_s, samples, streams, wanted)
    short = carried.short()
    assert short is not None
    assert short.peers == {"a", "b"}
    assert not carried.fine(["c"], {}, CHUNK), "too small a part to clear anybody"
    assert not carried.fine(["a"], {"a": 3.0 * wanted["a"]}, CHUNK)
    assert carried.fine(["a"], {"a": 0.5 * wanted["a"]}, CHUNK), "it has all that its source has"


def test_who_carries_next_to_nothing_says_nothing() -> None:
    carried = Carried()
    for wall_s in (0.0, 2.0, 2.0, 2.0):
        samples = [LinkSample(p, True, 1e6, 0.1, 5, round(0.2 * 2 * WANTED[p])) for p in WANTED]
        carried.take(wall_s, samples, STREAMS, WANTED)
    assert not carried.fine(["a", "b"], {}, CHUNK)


def test_other_hops_or_a_silence_begin_anew() -> None:
    carried = Carried()
    samples = [LinkSample(p, True, 0.5 * WANTED[p] / STREAMS[p], 2.0 * STREAMS[p], 5, WANTED[p]) for p in WANTED]
    for wall_s in (0.0, 2.0, 2.0, 0.0, 2.0, 2.0):
        carried.take(wall_s, samples, STREAMS, WANTED)
        assert carried.short() is None
    carried.take(2.0, samples, STREAMS, WANTED)
    assert carried.short() is not None
    carried.take(2.0, samples, STREAMS - Counter("a"), WANTED)
    assert carried.short() is None


@pytest.mark.parametrize(("share", "missed", "wrong"), [(1.0, 0, 0), (0.9, 0, 0), (0.55, 5, 0), (0.45, 0, 0)])
def test_whole_chunks_and_other_noise(share: float, missed: int, wrong: int) -> None:
    """A few chunks of 64 KiB in a report, of hops that differ by as much as real ones do, and of reports that come when
    they do. Of 500 sides: how many that are short go unnoticed for ten seconds, how many others are blamed."""
    dice = random.Random(f"{share}")
    found = 0
    for _ in range(500):
        carried, left, at_s = Carried(), dict.fromkeys(WANTED, 0.0), 0.0
        carried.take(0.0, [], STREAMS, WANTED)
        short = False
        while at_s < 10.0:
            wall_s = dice.uniform(1.0, 2.4)
            at_s += wall_s
            samples = []
            for peer, wanted in WANTED.items():
                left[peer] += dice.gauss(1.0, 0.2) * share * wanted * wall_s
                chunks = max(0, int(left[peer] / CHUNK))
                left[peer] -= chunks * CHUNK
                busy_s = STREAMS[peer] * wall_s * (dice.uniform(0.6, 1.0) if share < 0.9 else dice.uniform(0.3, 1.0))
                if chunks:
                    samples.append(LinkSample(peer, True, chunks * CHUNK / busy_s, busy_s, 5, chunks * CHUNK))
            carried.take(wall_s, samples, STREAMS, WANTED)
            short = short or carried.short() is not None
        found += short
    if share < 0.7:
        assert 500 - found <= missed
    else:
        assert found <= wrong
