"""The programs, and what they share. Whoever imports this package is about to be one of them, daemon or command."""

from __future__ import annotations

import gc

# A start makes tens of thousands of objects that stay. With Python's 700 they are looked through a hundred times, which
# is a tenth of a start. What is garbage and a cycle may wait for some MB of its kind.
gc.set_threshold(50_000, 20, 50)
