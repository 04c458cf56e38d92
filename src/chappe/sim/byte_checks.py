"""What must hold of bytes and versions at one relay.

at every chunk      what is stored matches its page
at landing          all of it, and nothing but the published bytes; versions never go back
after a hook        a failed one is reported as that, and its predecessor goes on being there to be served
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chappe.core.events import ObjectState

if TYPE_CHECKING:
    from chappe.sim.copies import Copy
    from chappe.sim.flow import Stream
    from chappe.sim.invariants import Checks
    from chappe.sim.node import Node
    from chappe.sim.storing import Storing


class ByteChecks:
    def __init__(self, checks: Checks) -> None:
        self._checks = checks
        self._versions: dict[str, dict[ObjectState, int]] = {}

    def stored(self, relay: Node, stream: Stream, ranges: list[tuple[int, int]]) -> None:
        copy = stream.copy
        for chunk in copy.at_rest or ():
            if any(a <= chunk < b for a, b in ranges) and copy.at_rest[chunk] != copy.page_tags.get(chunk, 0):
                self._checks.fail(
                    f"{relay.name} stored and forwards chunk {chunk} unverified, from {stream.parent.name}"
                )

    def landed(self, relay: Storing, copy: Copy) -> None:
        if len(copy.held) != copy.object.chunks_total:
            self._checks.fail(f"{relay.name} landed version {copy.version} without all of its chunks")
        false = copy.false_chunks()
        if false or copy.arrived:
            self._checks.fail(f"{relay.name} landed version {copy.version} with false bytes in chunks {false[:5]}")

    def versions(self, relay: Storing) -> None:
        now = relay.machine.versions()
        before = self._versions.setdefault(relay.name, {})
        for state in (ObjectState.VERIFIED, ObjectState.INSTALLED):
            if now[state] < before.get(state, 0):
                self._checks.fail(f"{relay.name} went back from {state.value} version {before[state]} to {now[state]}")
            before[state] = now[state]
        if relay.current != now[ObjectState.VERIFIED]:
            self._checks.fail(
                f"{relay.name} says that its readers follow {now[ObjectState.VERIFIED]}, they follow {relay.current}"
            )

    def install_ended(self, relay: Storing, version: int, *, ok: bool) -> None:
        said = {h.state for h in relay.machine.holdings() if h.version == version}
        installed = relay.machine.versions()[ObjectState.INSTALLED]
        if ok or not relay.running or not said:
            return
        if said != {ObjectState.FAILED} or installed >= version:
            self._checks.fail(
                f"{relay.name} does not say that its hook failed for version {version}: it has {installed}"
            )
        landed = sorted(copy.version for copy in relay.copies.values() if copy.version)
        before = max((v for v in relay.installed if v < version), default=0)
        if before and before not in landed and not any(before < v < version for v in landed):
            self._checks.fail(
                f"{relay.name} has given up version {before}, which its engine serves: {version} has failed"
            )
