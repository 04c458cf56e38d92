"""A rollout worker of `python -m bench loop`: asks the learner for work, answers with the weights that Chappe landed.

    loopworker.py STORE HOST PORT SEED

Each rollout takes the time that the learner says (the pace): two cores cannot be a fleet's, so rates are set, not
found. The rollout itself is real. It ends when the learner hangs up.
"""

from __future__ import annotations

import contextlib
import sys
import time
from multiprocessing.connection import Client, Connection

import numpy as np

from bench.looppolicy import Weights, sample
from chappe import RolloutSession
from chappe.snapshot import Snapshot

AUTHKEY = b"bench loop"
CATCH_UP_PACES = 2.0  # later than that, the worker had no work, and starts anew


def dial(host: str, port: int) -> Connection:
    """The learner's desk, which listens once torch is imported. Raises ConnectionError after a minute."""
    give_up_s = time.monotonic() + 60
    while True:
        try:
            return Client((host, port), authkey=AUTHKEY)
        except ConnectionRefusedError:
            if time.monotonic() > give_up_s:
                raise
            time.sleep(0.1)


def main(store: str, host: str, port: str, seed: str) -> None:
    weights: Weights = {}
    rng = np.random.default_rng(int(seed))

    def load(snapshot: Snapshot) -> None:
        weights.update({name: np.array(tensor) for name, tensor in snapshot.load().items()})

    session = RolloutSession(store, load=load, max_gap=0, report_s=2.0)
    with dial(host, int(port)) as learner:
        wanted, due_s = 1, time.monotonic()
        while True:
            with session.dispatch(learner_version=wanted, timeout_s=120) as work:
                while True:
                    learner.send(("ready", work.version))
                    kind, *order = learner.recv()
                    if kind == "refresh":
                        wanted = order[0]
                        break
                    item, prompt, pace_s = order
                    now = time.monotonic()
                    due_s = (due_s if now - due_s < CATCH_UP_PACES * pace_s else now) + pace_s
                    (answer,) = sample(weights, [prompt], rng)
                    time.sleep(max(0.0, due_s - time.monotonic()))
                    learner.send(("made", item, work.trajectory(answer)))


if __name__ == "__main__":
    with contextlib.suppress(EOFError, ConnectionError):  # the learner has what it wanted
        main(*sys.argv[1:])
