"""What goes wrong, and how it ends again. A fault picks its victim when its time has come, among those it can befall.

Every kind is one function: it does the harm, arranges the end of it, and returns the end's time, or None when nobody
was there to be harmed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from chappe.sim import data_faults, lane_faults, link_faults, process_faults, streamed_faults, stripe_faults
from chappe.sim.victims import Victims

if TYPE_CHECKING:
    from chappe.sim.scenario import Run

Kind = Callable[[Victims], float | None]

PLAIN_KINDS: dict[str, Kind] = {
    "kill": process_faults.kill,
    "restart": process_faults.restart,
    "pause": process_faults.pause,
    "ghost": process_faults.ghost,
    "hook": process_faults.hook,
    "slow": link_faults.slow,
    "uplink": link_faults.uplink,
    "downlink": link_faults.downlink,
    "blackhole": link_faults.blackhole,
    "partition": link_faults.partition,
    "reset": link_faults.reset,
    "nat": link_faults.nat,
    "corrupt": data_faults.corrupt,
    "rot": data_faults.rot,
    "forge": data_faults.forge,
    "disk": data_faults.disk,
    "clock": process_faults.clock,
    "coordinator": process_faults.coordinator,
    "publisher": process_faults.publisher,
    "source": process_faults.source,
    "joins": process_faults.joins,
    "leaves": process_faults.leaves,
    "outage": process_faults.outage,
}
LANE_KINDS: dict[str, Kind] = {
    "absent": lane_faults.absent,
    "base": lane_faults.base,
    "nodelta": lane_faults.no_delta,
    "wrongdelta": lane_faults.wrong_delta,
    "lostbase": lane_faults.lost_base,
}
"""These need objects beside the full one."""
STRIPE_KINDS: dict[str, Kind] = {"tail": stripe_faults.tail, "poison": stripe_faults.poison}
"""These hold of stripes only."""
STREAM_KINDS: dict[str, Kind] = {
    "outgrows": streamed_faults.outgrows,
    "openpublisher": streamed_faults.publisher_open,
    "openjoins": streamed_faults.joins_open,
    "openparent": streamed_faults.parent_open,
    "partsource": streamed_faults.salvage_source,
    "partkilled": streamed_faults.salvage_killed,
    "partassigned": streamed_faults.salvage_assigned,
}
"""These need deltas that leave while they are made, or bases that are damaged."""
KINDS = PLAIN_KINDS | LANE_KINDS | STRIPE_KINDS | STREAM_KINDS
MIXED = tuple(PLAIN_KINDS)
STRIPED = (*PLAIN_KINDS, *STRIPE_KINDS)


class Faults(Victims):
    def __init__(self, run: Run, kinds: Sequence[str]) -> None:
        super().__init__(run)
        self.kinds = tuple(kinds)
        self.injected: list[str] = []
        self._pending = 0

    @property
    def over(self) -> bool:
        return self._pending == 0 and self.agenda.now >= self.last_s

    def schedule(self, from_s: float, span_s: float, most: int) -> None:
        if not self.kinds:
            return
        for _ in range(self.random.randint(1, most)):
            self._pending += 1
            kind = self.random.choice(self.kinds)
            self.agenda.at(from_s + self.random.uniform(0, 1.2) * span_s, self._strike, kind, 0)

    def _strike(self, kind: str, tries: int) -> None:
        end_s = KINDS[kind](self)
        if end_s is None and tries < 3:  # nobody to be harmed now; perhaps in a while, or in another way
            other = kind if tries < 2 else self.random.choice(self.kinds)
            self.agenda.after(self.random.uniform(0.2, 2.0), self._strike, other, tries + 1)
            return
        self._pending -= 1
        if end_s is not None:
            self.injected.append(kind)
            self.struck(kind, end_s)
