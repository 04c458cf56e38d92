"""Every hop has one side that can dial: who must move when two hosts behind NAT have become neighbours.

Pure over a layout. A host that cannot be dialled may stand behind one that can (it dials) and in front of one that can
(it pushes); two of them cannot talk. The lower one of such a pair moves to the nearest place where both its neighbours
can be dialled: the tail of its own chain first, then other tails, then places further in. Without one it stays, until
somebody has the whole stripe: who needs nothing any more needs no hop (`served`), and gives way to whoever waits. It is
not the whole object that counts: in each stripe others may wait, and then nobody would ever have all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set

from chappe.core.chain import Chain, Layout

NOBODY: frozenset[str] = frozenset()


def cut_off(
    chain: Chain, position: int, undialable: Set[str], *, source_dialable: bool, served: Set[str] = NOBODY
) -> bool:
    """Nobody on the hop to this member can dial, and it needs one."""
    member = chain.members[position]
    if member not in undialable or member in served:
        return False
    if position == 0:
        return not chain.rooted and not source_dialable
    return chain.members[position - 1] in undialable


def spots(chain: Chain, undialable: Set[str], *, source_dialable: bool, served: Set[str] = NOBODY) -> Iterator[int]:
    """Where a host that cannot be dialled may be put in, from the tail up. Never in front of a rooted head."""
    members = chain.members
    for at in range(len(members), -1, -1):
        above = members[at - 1] not in undialable if at else source_dialable and not chain.rooted and bool(members)
        below = at == len(members) or members[at] not in undialable or members[at] in served
        if above and below:
            yield at


def mend(
    layout: Layout,
    stripe: int,
    undialable: Set[str],
    *,
    source_dialable: bool,
    usable: Callable[[Chain], bool],
    served: Set[str] = NOBODY,
) -> tuple[set[str], list[str]]:
    """Move whoever is cut off and can be helped, in one stripe. Returns whose edges may differ, and who has moved."""
    near: set[str] = set()
    moved: list[str] = []
    for chain in layout.of_stripe(stripe):
        position = 0
        while position < len(chain.members):
            worker_id = chain.members[position]
            if not cut_off(chain, position, undialable, source_dialable=source_dialable, served=served):
                position += 1
                continue
            near |= layout.remove_from(chain, worker_id)
            others = [c for c in layout.of_stripe(chain.stripe) if c is not chain and usable(c)]
            spot = next(
                (
                    (c, at)
                    for c in [chain, *sorted(others, key=lambda c: (len(c.members), c.slot))]
                    for at in spots(c, undialable, source_dialable=source_dialable, served=served)
                ),
                None,
            )
            if spot is None:
                near |= layout.insert(chain, worker_id, position)
                position += 1
                continue
            near |= layout.insert(spot[0], worker_id, spot[1])
            moved.append(worker_id)
    return near, moved
