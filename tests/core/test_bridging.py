"""Whoever is cut off moves to where a side can dial, if there is such a place; nobody else moves."""

from __future__ import annotations

import copy

from hypothesis import given
from hypothesis import strategies as st

from chappe.core.bridging import cut_off, mend, spots
from chappe.core.chain import SOURCE, Chain, Layout


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Layout, set[str], bool]:
    names = [f"w{i}" for i in range(draw(st.integers(1, 9)))]
    chains = [Chain(0, slot, rooted=draw(st.booleans())) for slot in range(draw(st.integers(1, 3)))]
    for name in names:
        chains[draw(st.integers(0, len(chains) - 1))].members.append(name)
    return Layout(chains), draw(st.sets(st.sampled_from(names))), draw(st.booleans())


def lost(layout: Layout, undialable: set[str], able: bool) -> list[str]:
    return [
        member
        for chain in layout.chains
        for i, member in enumerate(chain.members)
        if cut_off(chain, i, undialable, source_dialable=able)
    ]


@given(layouts())
def test_what_can_be_mended_is(case: tuple[Layout, set[str], bool]) -> None:
    layout, undialable, able = case
    before = copy.deepcopy(layout)
    was_lost = lost(before, undialable, able)
    near, moved = mend(layout, 0, undialable, source_dialable=able, usable=lambda chain: bool(chain.members))
    assert sorted(layout.workers()) == sorted(before.workers())
    assert set(moved) <= set(was_lost)
    left = lost(layout, undialable, able)
    assert set(left) <= set(was_lost) - set(moved)
    for member in left:  # there was no place for it
        (place,) = layout.places(member)
        rest = Chain(0, 9, [m for m in place.chain.members if m != member], place.chain.rooted)
        for chain in [rest, *(c for c in layout.chains if c is not place.chain and c.members)]:
            assert next(spots(chain, undialable, source_dialable=able), None) is None
    for member in before.workers():  # whoever has another parent was named
        old, new = (x.ancestors(x.places(member)[0], 1) for x in (before, layout))
        assert old == new or member in near


def test_the_own_tail_comes_first() -> None:
    layout = Layout([Chain(0, 0, ["a", "x", "y", "b"]), Chain(0, 1, ["c"])])
    near, moved = mend(layout, 0, {"x", "y"}, source_dialable=True, usable=lambda chain: True)
    assert moved == ["y"]
    assert [chain.members for chain in layout.chains] == [["a", "x", "b", "y"], ["c"]]
    assert {"x", "b", "y"} <= near


def test_without_a_dialable_source_they_stand_behind_those_who_are() -> None:
    layout = Layout([Chain(0, 0, ["x"]), Chain(0, 1, ["a"])])
    near, moved = mend(layout, 0, {"x"}, source_dialable=False, usable=lambda chain: bool(chain.members))
    assert moved == ["x"]
    assert [chain.members for chain in layout.chains] == [[], ["a", "x"]]
    assert SOURCE in near


def test_who_has_everything_gives_way_to_who_waits() -> None:
    layout, undialable = Layout([Chain(0, 0, ["a", "x", "y"])]), {"x", "y"}
    assert mend(layout, 0, undialable, source_dialable=False, usable=lambda chain: True)[1] == []
    near, moved = mend(layout, 0, undialable, source_dialable=False, usable=lambda chain: True, served={"x"})
    assert moved == ["y"]
    assert layout.chains[0].members == ["a", "y", "x"]
    assert {"a", "x", "y"} <= near
    layout = Layout([Chain(0, 0, ["x", "y"])])
    assert mend(layout, 0, undialable, source_dialable=True, usable=lambda chain: True, served={"x"})[1] == ["y"]
    assert layout.chains[0].members == ["y", "x"]


def test_two_that_cannot_be_helped_stay() -> None:
    layout = Layout([Chain(0, 0, ["x", "y"])])
    assert mend(layout, 0, {"x", "y"}, source_dialable=False, usable=lambda chain: True)[1] == []
    assert layout.chains[0].members == ["x", "y"]
