"""What is unusual about a delta: for a person who watches a training run, never a reason to send something else.

Steps of a healthy run change about as many elements each time, and an element costs about 0.7 to 3 bytes. Nothing
changed at all means that the optimizer did nothing, or that old weights were published again.
"""

from __future__ import annotations

JUMP = 3.0
BYTES_PER_CHANGED = (0.7, 3.0)
CHANGED_MIN = 100_000  # below, headers and digests weigh more than the elements


def alarm_of(changed: int, compared: int, changed_bytes: int, before: float | None) -> str:
    """Empty when there is nothing to say. All counts are of tensors that have a base: a new one has not changed, and a
    tokenizer has no elements. `before` is the density of the delta before this one, None without one."""
    if not compared:
        return ""
    if not changed:
        return "no element changed"
    density = changed / compared
    if before and not before / JUMP <= density <= before * JUMP:
        return f"{density:.2%} of the elements changed, {before:.2%} the time before"
    each = changed_bytes / changed
    low, high = BYTES_PER_CHANGED
    if changed >= CHANGED_MIN and not low <= each <= high:
        return f"{each:.2f} bytes for each changed element, not {low} to {high}"
    return ""
