"""`python -m bench.late_relayd`: relayd that applies no delta before all of it has come, and a moment more.

Where one machine plays all hosts, what the relays apply keeps the publisher, and those that still receive, from the
processors: hosts of their own have them. So this says how soon a delta is received there, and nothing of how soon it is
installed.
"""

from __future__ import annotations

from chappe.hop import ahead
from chappe.hop.ahead import FORWARD_S, Arriving


class LateArriving(Arriving):
    def wait(self, stop: int) -> int:
        with self._changed:
            while not (self._stopped or self.urgent()):
                self._changed.wait(FORWARD_S)
        return super().wait(stop)


def patch() -> None:
    ahead.Arriving = LateArriving  # type: ignore[misc]


if __name__ == "__main__":
    from relayd.__main__ import main  # raises malloc's thresholds when it is imported

    patch()
    main()
