"""What a planner refuses, and what it can only say no to."""

from __future__ import annotations

import math

from chappe.errors import ChappeError, UsageError


class PlanInputError(UsageError):
    """An input that means nothing: not positive, not finite, out of its range. Names the input."""


class Infeasible(ChappeError):  # noqa: N818  the planner's answer is "no", not a malfunction
    """No fleet, however large, meets the requirement. The remedies say what would.

    `kappa_min`: the smallest kappa that makes it feasible. `payload_fraction_max`: the payload would have to be below
    this fraction of what it is (T_bcast is proportional to bytes). Either is None where no value of it helps.
    """

    def __init__(
        self, message: str, *, kappa_min: int | None = None, payload_fraction_max: float | None = None
    ) -> None:
        super().__init__(message)
        self.kappa_min = kappa_min
        self.payload_fraction_max = payload_fraction_max


def positive(name: str, value: float) -> float:
    """Return a finite value above zero, or raise PlanInputError that names it."""
    if not math.isfinite(value) or value <= 0:
        raise PlanInputError(f"{name} must be a number above zero, not {value}")
    return value


def not_negative(name: str, value: float) -> float:
    """Return a finite value of zero or more, or raise PlanInputError that names it."""
    if not math.isfinite(value) or value < 0:
        raise PlanInputError(f"{name} must be zero or a number above it, not {value}")
    return value


def at_least(name: str, value: int, least: int) -> int:
    """Return a whole number of `least` or more, or raise PlanInputError that names it."""
    if isinstance(value, bool) or value != int(value) or value < least:
        raise PlanInputError(f"{name} must be a whole number of {least} or more, not {value}")
    return int(value)
