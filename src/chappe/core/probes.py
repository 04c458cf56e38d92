"""What the coordinator orders a node to measure, and what comes of it. See `chappe.hop.probe`."""

from __future__ import annotations

from dataclasses import dataclass

from chappe.core.effects import PeerRef


@dataclass(frozen=True, slots=True)
class ProbeOrder:
    """Measure the link to this peer: so many bytes or seconds in each direction, whichever is first."""

    order: str
    peer: PeerRef
    token: bytes  # a serialized EdgeToken
    bytes_max: int
    seconds_max: float


@dataclass(frozen=True, slots=True)
class ProbeOutcome:
    """Rates in bytes per second, 0 where not measured; `bytes` and `seconds` in both directions together."""

    order: str
    up_bytes_per_s: float = 0.0
    down_bytes_per_s: float = 0.0
    bytes: int = 0
    seconds: float = 0.0
    error: str = ""
