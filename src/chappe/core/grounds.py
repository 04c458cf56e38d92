"""Why a publication's chains are what they are: kept with it, shown by `chappe status` and `chappe explain`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Grounds:
    """What the coordinator knew when it laid the chains. Times are T(until) in seconds, as promised then; None: not
    compared. `rate_bytes_per_s` is that of all stripes together, into each worker; None for plain chains."""

    why: str = ""  # for a person
    rate_bytes_per_s: float | None = None
    striped_s: float | None = None
    plain_s: float | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
