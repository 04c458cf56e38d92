"""Open cases: a slow hop, a repair that is its test, and what has been heard of it since.

A case is part of its publication and stored with it: a coordinator that restarts goes on with it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Mode(StrEnum):
    ASIDE = "aside"  # the child tries another chain's tail, the parent waits where nobody is behind it
    UP = "up"  # the child tries its grandparent, the parent goes to the end
    WITNESS = "witness"  # the child goes to the end, the next one says what the parent sends
    SWAP = "swap"  # the origin's only head goes to the end, the next one says what the origin sends


@dataclass(slots=True)
class Case:
    mode: Mode
    stripe: int
    watched: str
    parent: str  # whose child the watched one is now; "" for the origin
    accused: str
    before_bytes_per_s: float
    since_s: float
    slots: tuple[int, ...]  # of the chains that it is tried in: no other case is opened there
    contradicted: bool = False
    busy_s: float = 0.0
    bytes: float = 0.0

    @property
    def mean_bytes_per_s(self) -> float:
        return self.bytes / self.busy_s if self.busy_s > 0 else 0.0

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "mode": self.mode.value, "slots": list(self.slots)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Case:
        return cls(**{**data, "mode": Mode(data["mode"]), "slots": tuple(data["slots"])})
