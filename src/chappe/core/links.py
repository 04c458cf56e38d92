"""What is known of a host's links from measuring them: smoothed, aged, and how often it failed those behind it.

Evidence is counted in seconds for which a link was busy. New evidence halves the weight of the old every
`HALF_LIFE_S` busy seconds, so that an estimate follows a change within a few reports; idle time halves it every hour,
so that yesterday's figure gives way to the first new one, and in the end to what was declared. What was declared counts
like a full estimate: a tenth of a second after a pause says more of buffers and bursts than of a link.

    exact(rate)        the link was the limit, or has carried more than was believed: the estimate follows
    settle(rate)       a repair has found the cause: the estimate is this, now

Plain arithmetic over (rate, busy seconds, time). Who was the limit is decided in `measuring`.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

HALF_LIFE_S = 5.0  # of busy time: two or three reports
AGE_HALF_LIFE_S = 3600.0
WEIGHT_MIN_S = 0.05  # less evidence than this is none; a full estimate is forgotten after seven hours without any
WEIGHT_MAX_S = HALF_LIFE_S / math.log(2)
SUCCESS_SHARE = 0.2  # of each new outcome


@dataclass(slots=True)
class Estimate:
    """One direction of a host's link."""

    bytes_per_s: float = 0.0
    weight_s: float = 0.0  # at `measured_s`
    measured_s: float = 0.0

    def _weight(self, now: float) -> float:
        return self.weight_s * float(0.5 ** (max(0.0, now - self.measured_s) / AGE_HALF_LIFE_S))

    def known(self, now: float) -> bool:
        return self.bytes_per_s > 0 and self._weight(now) >= WEIGHT_MIN_S

    def exact(self, bytes_per_s: float, busy_s: float, now: float, declared: float | None = None) -> None:
        """`declared` by its host, where that is so: measuring starts there, and a first sample is a sample."""
        if bytes_per_s <= 0 or busy_s <= 0:
            return
        if declared and not self.known(now):
            self.settle(declared, now)
        old = self._weight(now) * float(0.5 ** (busy_s / HALF_LIFE_S))
        new = WEIGHT_MAX_S * (1 - float(0.5 ** (busy_s / HALF_LIFE_S)))
        self.bytes_per_s = (self.bytes_per_s * old + bytes_per_s * new) / (old + new)
        self.weight_s, self.measured_s = old + new, now

    def settle(self, bytes_per_s: float, now: float) -> None:
        self.bytes_per_s, self.weight_s, self.measured_s = bytes_per_s, WEIGHT_MAX_S, now


@dataclass(slots=True)
class Links:
    """Of one host. `success` is the share of outcomes in which those behind it were served, 1 without any."""

    up: Estimate = field(default_factory=Estimate)
    down: Estimate = field(default_factory=Estimate)
    success: float = 1.0
    success_s: float = 0.0  # when it was last written

    def success_rate(self, now: float) -> float:
        """Failures are forgotten, too."""
        return 1 - (1 - self.success) * float(0.5 ** (max(0.0, now - self.success_s) / AGE_HALF_LIFE_S))

    def note(self, ok: bool, now: float) -> None:
        self.success = (1 - SUCCESS_SHARE) * self.success_rate(now) + SUCCESS_SHARE * ok
        self.success_s = now

    def shift(self, by_s: float) -> None:
        """The clock has started anew, so much earlier."""
        for estimate in (self.up, self.down):
            estimate.measured_s -= by_s
        self.success_s -= by_s

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any] | None) -> Links:
        if data is None:
            return cls()
        return cls(Estimate(**data["up"]), Estimate(**data["down"]), data["success"], data["success_s"])


@dataclass(slots=True)
class Demotion:
    """Not trusted to relay at speed since then; `credit_s` is how long it has shown the contrary."""

    since_s: float
    times: int = 1  # ever: each time it takes longer to earn its place back
    credit_s: float = 0.0
    active: bool = True
