"""How a simulated relay makes the full object out of a delta or a compressed snapshot, as `chappe.hop.becoming` does.

landed already ──▶ nothing to do        base is here and true, so is the delta ──▶ the full object, landed
else: it says that this object is of no use to it, and gets the version as another one
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chappe.core.relay_events import Land, Landed, LandFailed, LocalFault, RelayEvent
from chappe.sim.copies import Copy
from chappe.sim.salvage import keep_part

if TYPE_CHECKING:
    from chappe.sim.storing import Storing


def bases_held(relay: Storing) -> set[int]:
    """Versions that are being read: deltas are applied while they arrive."""
    roots = {c.object.base_root for c in relay.copies.values() if c.header and c.object.full_id and not c.applied}
    return {c.version for c in relay.copies.values() if c.version and c.object.root in roots}


def land_encoded(relay: Storing, order: Land, copy: Copy) -> RelayEvent:
    full = next((c for c in relay.copies.values() if c.version == order.version), None)
    if full is None:
        if relay.disk_full:
            return LandFailed(order.object_id, LocalFault.DISK_FULL, "no room")
        if not copy.complete:
            return LandFailed(order.object_id, LocalFault.STORE, "chunks are missing")
        why = obstacle(relay, copy) or ("" if order.root == copy.object.root else "it leads to another root")
        if why:
            return LandFailed(order.object_id, LocalFault.DELTA, why, keep_part(relay, copy))
        full = _made(relay, order, copy)
    copy.applied = True
    return Landed(order.object_id, relay.restored(full))


def obstacle(relay: Storing, copy: Copy) -> str:
    """Why this delta does not give what it should here."""
    delta = copy.object
    if delta.spoiled:
        return "the delta leads to another root"
    if copy.arrived or copy.at_rest:
        return "the delta cannot be read"
    known = relay.copies.get(delta.full_id)
    if known is not None and known.held:
        return "the object to which it leads is in the store already"
    if not delta.base_root:
        return ""
    base = next((c for c in relay.copies.values() if c.version and c.object.root == delta.base_root), None)
    if base is None:
        return "the version at which it begins is not here"
    if base.at_rest or not base.complete:
        return "a block does not come out as the publisher's"
    return ""


def _made(relay: Storing, order: Land, copy: Copy) -> Copy:
    relay.drop_object(copy.object.full_id)
    full = relay.add_copy(relay.world.objects[copy.object.full_id])
    full.held.add(0, full.object.chunks_total)
    full.header, full.pages_upto, full.version = True, full.object.chunks_total, order.version
    relay.world.counts[f"{copy.object.kind} landed"] += 1
    relay.world.counts["folded landed"] += copy.object.folded
    return full
