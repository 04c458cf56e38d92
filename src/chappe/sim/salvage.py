"""What a delta makes right of a version although its base is damaged, as `chappe.hop.salvage` keeps it.

A chunk of the target that has a byte of a block that did not come out right lacks. All others are here, and held once
their page has come and says the same: of a delta that leads to other bytes some pages do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chappe.core.ranges import RangeSet
from chappe.sim.copies import Copy, SimObject

if TYPE_CHECKING:
    from chappe.sim.storing import Storing

BLOCK_BYTES = 2 << 20
"""Of bf16."""
WRONG_SHARE_MAX = 0.5
"""As `chappe.hop.applying` has it: a base in which more is not what it was is another one."""
FALSE_MOST = 3


def lacking(base: Copy, target: SimObject) -> RangeSet:
    """Chunks of the target that this base does not give."""
    found = RangeSet()
    size = base.object.chunk_bytes
    gone = base.held.missing(0, base.object.chunks_total)
    for start, stop in [*gone, *((chunk, chunk + 1) for chunk, tag in base.at_rest.items() if tag)]:
        first, last = start * size // BLOCK_BYTES * BLOCK_BYTES, -(-stop * size // BLOCK_BYTES) * BLOCK_BYTES
        found.add(first // target.chunk_bytes, min(target.chunks_total, -(-last // target.chunk_bytes)))
    return found


def keep_part(relay: Storing, delta: Copy) -> str:
    """The object of which a part is kept; empty where there is none. The delta has not given the version."""
    world, full_id = relay.world, delta.object.full_id
    trainer, base_root = world.trainer, delta.object.base_root
    base = next((c for c in relay.copies.values() if c.version and c.object.root == base_root), None)
    if trainer is None or not trainer.streams or base is None or full_id in relay.copies:
        return ""
    target = world.objects[full_id]
    lacks = lacking(base, target)
    if delta.arrived or delta.at_rest or not lacks or len(lacks) > WRONG_SHARE_MAX * target.chunks_total:
        return ""
    part = relay.add_copy(target)
    part.header = part.salvaged = True
    part.expected = RangeSet(lacks.missing(0, target.chunks_total))
    if delta.object.spoiled:
        here = [chunk for start, stop in part.expected for chunk in range(start, stop)]
        part.doubtful = set(world.random.sample(here, min(len(here), FALSE_MOST)))
    world.counts["salvaged"] += 1
    world.checks.streamed.salvaged(relay, part)
    relay.later(0.0, world.spring, "part", relay, part)
    return full_id
