"""A process that lands a delta and is killed on the way, without a word: python -m tests.hop.dying STORE ROOT STEP SEED

At its STEP-th operation on the disk; a write is cut short somewhere, too. Ends with 0 when it landed before.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from pathlib import Path

from chappe.core.manifest import ObjectKind
from chappe.hop.disk import Disk
from chappe.hop.store import Store


class DeadlyDisk(Disk):
    def __init__(self, step: int, seed: int) -> None:
        self.left = -1
        self._step_of_death, self._random = step, random.Random(seed)
        self._lock = threading.Lock()

    def arm(self) -> None:
        self.left = self._step_of_death

    def _step(self, operation: str) -> None:
        with self._lock:
            self.left -= 1
            if self.left == 0 and operation != "pwrite":
                os.kill(os.getpid(), signal.SIGKILL)

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        self._step("pwrite")
        if self.left == 0:
            os.pwrite(fd, data[: self._random.randrange(len(data) + 1)], offset)
            os.kill(os.getpid(), signal.SIGKILL)
        super().pwrite(fd, data, offset)


def main(path: str, root: str, step: str, seed: str) -> None:
    disk = DeadlyDisk(int(step), int(seed))
    with Store.open(Path(path), disk) as store:
        (delta,) = (h for h in store.objects().values() if h.manifest and h.manifest.kind is ObjectKind.DELTA)
        delta.recover()
        disk.arm()
        store.land(delta.object_id, 2, root)


if __name__ == "__main__":
    main(*sys.argv[1:])
