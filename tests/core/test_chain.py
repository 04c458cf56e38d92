"""Layouts against a stupid model: plain lists."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappe.core.chain import FALLBACKS_MAX, SOURCE, Chain, Layout


def parents(layout: Layout) -> dict[tuple[int, str], list[str]]:
    """Each worker's ancestors as far as it has tokens for them, read off the lists."""
    found = {}
    for chain in layout.chains:
        above = [] if chain.rooted else [SOURCE]
        for member in chain.members:
            found[chain.stripe, member] = list(reversed(above))[: FALLBACKS_MAX + 1]
            above.append(member)
    return found


def children(layout: Layout) -> dict[tuple[int, str], str | None]:
    return {
        (chain.stripe, member): chain.members[i + 1] if i + 1 < len(chain.members) else None
        for chain in layout.chains
        for i, member in enumerate(chain.members)
    }


WORKERS = [f"w{i}" for i in range(12)]


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Two stripes, each worker at most once in each."""
    chains = []
    for stripe in range(draw(st.integers(1, 2))):
        members = draw(st.lists(st.sampled_from(WORKERS), unique=True))
        count = draw(st.integers(1, 3))
        chains += [Chain(stripe, slot, members[slot::count], rooted=draw(st.booleans())) for slot in range(count)]
    return Layout(chains)


def check_reported(before: Layout, after: Layout, near: set[str]) -> None:
    """Whoever has another parent, child or fallback than before was named."""
    old, new = parents(before), parents(after)
    changed = {w for s, w in new.keys() | old.keys() if old.get((s, w)) != new.get((s, w))}
    old_child, new_child = children(before), children(after)
    changed |= {w for s, w in new_child if old_child.get((s, w)) != new_child[s, w]}
    assert changed <= near | {w for w in changed if w not in after}


def copy(layout: Layout) -> Layout:
    return Layout.from_json(layout.to_json())


@given(layouts(), st.data())
def test_every_change_names_whom_it_concerns(layout: Layout, data: st.DataObject) -> None:
    before = copy(layout)
    chain = data.draw(st.sampled_from(layout.chains))
    members = list(chain.members)
    move = data.draw(st.sampled_from(["insert", "remove", "end", "rotate", "join"]))
    new = [w for w in WORKERS if layout.place(chain.stripe, w) is None]
    if move == "insert" and new:
        near = layout.insert(chain, new[0], data.draw(st.integers(0, len(members)) | st.none()))
    elif move == "remove" and members:
        near = layout.remove(data.draw(st.sampled_from(members)))
    elif move == "end" and members:
        near = layout.move_to_end(chain, data.draw(st.sampled_from(members)))
    elif move == "rotate" and members:
        near = layout.rotate(chain, data.draw(st.sampled_from(members)))
    else:
        others = [c for c in layout.of_stripe(chain.stripe) if c is not chain]
        if not others:
            return
        near = layout.join(data.draw(st.sampled_from(others)), chain)
    check_reported(before, layout, near)
    for c in layout.chains:
        for i, member in enumerate(c.members):
            place = layout.place(c.stripe, member)
            assert place is not None
            assert (place.chain, place.position) == (c, i)
            assert layout.ancestors(place, FALLBACKS_MAX + 1) == parents(layout)[c.stripe, member]
            assert layout.child(place) == children(layout)[c.stripe, member]


def test_a_death_moves_one_edge_only() -> None:
    layout = Layout([Chain(0, 0, ["a", "b", "c", "d"]), Chain(0, 1, ["e"])])
    before = parents(layout)
    layout.remove("b")
    after = parents(layout)
    assert [w for (_, w), above in after.items() if above[0] != before[0, w][0]] == ["c"]


def test_rotation_moves_one_edge_only() -> None:
    layout = Layout([Chain(0, 0, ["a", "b", "c", "d"])])
    layout.rotate(layout.chains[0], "c")
    assert layout.chains[0].members == ["c", "d", "a", "b"]


def test_a_worker_stands_once_in_a_stripe() -> None:
    with pytest.raises(ValueError, match="two chains"):
        Layout([Chain(0, 0, ["a"]), Chain(0, 1, ["a"])])
    assert Layout([Chain(0, 0, ["a"]), Chain(1, 0, ["a"])]).stripes == [0, 1]


def test_open_slot_uses_an_emptied_chain_first() -> None:
    layout = Layout([Chain(0, 0, ["a"]), Chain(0, 1)])
    assert layout.open_slot(0).slot == 1
    layout.insert(layout.chains[1], "b")
    assert layout.open_slot(0).slot == 2
    assert layout.open_slot(5).slot == 0
