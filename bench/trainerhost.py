"""`python -m bench.trainerhost '{...}'`: a trainer with a publisher open, for `bench delta-links`.

At each SIGUSR1 it publishes the next version of a run, waits until all have it, and logs what came of it (`published`).
The version after that is written meanwhile, as a training step would: nothing of it is measured.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import structlog
from safetensors.numpy import save_file

from bench.updates import Bf16, learning_rate_for, to_bf16
from chappe import Publisher
from chappe.coordinator.status import publication_json
from chappe.hop.malloc import raise_thresholds
from chappe.logs import LogFormat, configure_logging

GO = signal.SIGUSR1


class Versions:
    """Snapshots of one training run, each written over the one before it: the publisher has its own copy."""

    def __init__(self, size_bytes: int, density: float) -> None:
        self._rng = np.random.default_rng(0)
        self._masters = self._rng.standard_normal(size_bytes // 2, np.float32) * np.float32(0.02)
        self._step = np.float32(learning_rate_for(density))

    def write(self, directory: Path) -> Path:
        directory.mkdir(exist_ok=True)
        values: Bf16 = to_bf16(self._masters)
        save_file({"model.weight": values}, directory / "model.safetensors", metadata={"format": "np"})
        self._masters -= self._step * np.clip(
            self._rng.standard_normal(self._masters.size, np.float32) * np.float32(0.35), -1, 1
        )
        return directory


def main() -> None:
    go = threading.Semaphore(0)
    signal.signal(GO, lambda *_: go.release())
    given: dict[str, Any] = json.loads(sys.argv[1])
    configure_logging(LogFormat.JSON, "info")
    log = structlog.get_logger()
    directory = Path(given["directory"])
    versions = Versions(given["size"], given["density"])
    with Publisher(
        given["coordinator"],
        listen=given["listen"],
        uplink=given["uplink"],
        insecure=True,
        base_cache=directory / "base",
    ) as publisher:
        for version in range(1, given["versions"] + 1):
            snapshot = versions.write(directory / "snapshot")
            if version == 1:
                log.info("ready", address=publisher.address)
            else:
                log.info("trained", version=version)
            go.acquire()
            started_s = time.time()
            status = publisher.publish(snapshot, version, payload="auto").wait()
            log.info("published", version=version, started_s=started_s, result=publication_json(status.message))


if __name__ == "__main__":
    raise_thresholds()
    main()
