"""`python -m bench.plain_relayd`: relayd with glibc's malloc as it comes, to compare with."""

from __future__ import annotations

from chappe.hop import malloc


def _leave_alone() -> bool:
    return False


malloc.raise_thresholds = _leave_alone

if __name__ == "__main__":
    from relayd.__main__ import main  # only now: it raises the thresholds before it imports anything else

    main()
