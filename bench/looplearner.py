"""The learner of `python -m bench loop`: measures T_train, T_bcast and mu, predicts, runs, and says both as JSON lines.

    looplearner.py '{"coordinator": ..., "listen": ..., "workers": N, "runs": [...]}'

A period: wait for the kappa * R rollouts of the version before, publish, train kappa steps on them while the workers
receive the new version and make the next kappa * R with it. So a period takes max(kappa T, T_bcast + kappa R / mu),
which is the model (`chappe.planning.capacity`); a learner that takes rollouts one by one waits less.
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
from collections import deque
from multiprocessing.connection import Connection, Listener
from typing import Any

import numpy as np

from bench.looppolicy import Answer, Learner, Prompt, prompts_of
from bench.loopworker import AUTHKEY
from chappe import Admission, Publisher, Trajectory
from chappe.planning.capacity import bubble_ratio, min_pool_throughput

STALENESS = 3  # periods: versions are periods here
WARM_UP = 2
CALIBRATE = 3


class Desk:
    """Gives out the prompts of the open version, takes rollouts back; what a lost worker held is given out again."""

    def __init__(self, host: str, port: int, workers: int) -> None:
        self._changed = threading.Condition()
        self._version, self._pace_s = 0, 0.0
        self._items: deque[tuple[int, Prompt]] = deque()
        self._made: dict[int, Trajectory] = {}
        self._listener = Listener((host, port), backlog=workers, authkey=AUTHKEY)
        for _ in range(workers):
            threading.Thread(target=self._serve, args=(self._listener.accept(),), daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def open(self, version: int, prompts: list[Prompt], pace_s: float) -> None:
        with self._changed:
            self._version, self._pace_s = version, pace_s
            self._items, self._made = deque(enumerate(prompts)), {}
            self._changed.notify_all()

    def take(self, count: int) -> list[Trajectory]:
        """All of the open version, in the prompts' order."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._made) == count)
            return [self._made[i] for i in range(count)]

    def _serve(self, worker: Connection) -> None:
        held: tuple[int, Prompt] | None = None
        try:
            while True:
                kind, *said = worker.recv()
                with self._changed:
                    if kind == "made":
                        self._made[said[0]], held = said[1], None
                        self._changed.notify_all()
                        continue
                    here = said[0]
                    self._changed.wait_for(lambda here=here: here < self._version or bool(self._items))
                    if here < self._version:
                        answer: tuple[Any, ...] = ("refresh", self._version)
                    else:
                        held = self._items.popleft()
                        answer = ("work", *held, self._pace_s)
                worker.send(answer)
        except (EOFError, ConnectionError):
            with self._changed:
                if held is not None:
                    self._items.appendleft(held)
                    self._changed.notify_all()


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


class Loop:
    def __init__(self, settings: dict[str, Any], publisher: Publisher) -> None:
        self._settings, self._publisher = settings, publisher
        self._group, self._rng = settings["group"], np.random.default_rng(settings["seed"])
        self._learner = Learner(settings["seed"], self._group)
        self._admission = Admission(STALENESS, publisher=publisher)
        self._version = 0
        self.desk = Desk(settings["host"], settings["port"], settings["workers"])

    def _publish(self) -> Any:
        self._version += 1
        self._admission.advance(self._version)
        return self._publisher.publish(self._learner.weights(), version=self._version, payload="full")

    def _train(self, answers: list[Answer], due_s: float) -> float:
        """A step that is over at `due_s`, or when it has been computed."""
        found = self._learner.step(answers)
        time.sleep(max(0.0, due_s - time.monotonic()))
        return found

    def _step_time(self, batch: int) -> float:
        """T_train: of paced steps on answers of its own, before anybody else computes."""
        answers = [Answer((1, 2), (3, 1, 2, 2), (-2.3,) * 4, 1.0 - i % 2) for i in range(batch)]
        scratch, taken = Learner(self._settings["seed"], self._group), []
        for _ in range(CALIBRATE):
            began_s = time.monotonic()
            scratch.step(answers)
            time.sleep(max(0.0, began_s + self._settings["step_s"] - time.monotonic()))
            taken.append(time.monotonic() - began_s)
        return statistics.median(taken)

    def _broadcast_time(self) -> float:
        """T_bcast(1.0): of publications while nothing else happens."""
        times = [self._publish().wait(timeout_s=120).t_bcast["1.0"] for _ in range(CALIBRATE)]
        return statistics.median(times)

    def _pool(self, pace_s: float) -> float:
        """mu: of all workers, at this pace, with the version that they have."""
        count = self._settings["workers"] * max(self._group, round(2.0 / pace_s))
        self.desk.open(self._version, [(0, 0)] * count, pace_s)
        began_s = time.monotonic()
        self.desk.take(count)
        return count / (time.monotonic() - began_s)

    def measure(self, kappa: int, batch: int, ratio: float | None, pace_s: float | None) -> dict[str, Any]:
        """What the prediction is made from, and the prediction."""
        t_train_s, t_bcast_s = self._step_time(batch), self._broadcast_time()
        required = min_pool_throughput(t_train_s, t_bcast_s, kappa, batch)
        if pace_s is None:
            wanted = (ratio or 1.0) * required
            pace_s = self._settings["workers"] / wanted
            for _ in range(2):  # what comes on top of the pace (the answer's way, its computation) is found out
                pace_s *= self._pool(pace_s) / wanted
        mu = self._pool(pace_s)
        return {
            "kappa": kappa,
            "batch": batch,
            "t_train_s": t_train_s,
            "t_bcast_s": t_bcast_s,
            "required_per_s": required,
            "mu_per_s": mu,
            "pace_s": pace_s,
            "bubble": bubble_ratio(t_train_s, t_bcast_s, kappa, batch, mu_pool=mu),
        }

    def run(self, kappa: int, batch: int, pace_s: float, periods: int, kill_at: int | None) -> dict[str, Any]:
        """Waits and lengths of the periods."""
        count = kappa * batch
        self._publish()
        self.desk.open(self._version, prompts_of(count, self._group, self._rng), pace_s)
        waits: list[float] = []
        lengths: list[float] = []
        rewards: list[float] = []
        broadcasts = []
        began_s = time.monotonic()
        for period in range(periods):
            if period == kill_at:
                say(kill=True)
            made = self.desk.take(count)
            waits.append(time.monotonic() - began_s)
            start_s = time.monotonic()
            admitted = self._admission.sift(made)
            if len(admitted) != count:
                raise AssertionError(f"{count - len(admitted)} of {count} rollouts were too old or came twice")
            broadcasts.append(self._publish())
            self.desk.open(self._version, prompts_of(count, self._group, self._rng), pace_s)
            for k in range(kappa):
                answers = [t.data for t in admitted[k * batch : (k + 1) * batch]]
                rewards.append(self._train(answers, start_s + (k + 1) * self._settings["step_s"]))
            now_s = time.monotonic()
            lengths.append(now_s - began_s)
            began_s = now_s
        self.desk.take(count)
        times = [b.wait(timeout_s=120).t_bcast["1.0"] for b in broadcasts]
        return {"waits_s": waits, "periods_s": lengths, "rewards": rewards, "t_bcast_s": times}


def main(text: str) -> None:
    settings = json.loads(text)
    flags = {"listen": settings["listen"], "uplink": settings["uplink"], "insecure": True, "base_cache": False}
    with Publisher(settings["coordinator"], **flags) as publisher:
        loop = Loop(settings, publisher)
        pace_s = None
        for order in settings["runs"]:
            kept = pace_s if order.get("same_pace") else None
            predicted = loop.measure(order["kappa"], order["batch"], order.get("ratio"), kept)
            pace_s = predicted["pace_s"]
            say(predicted=predicted, order=order)  # on record before the run begins
            measured = loop.run(order["kappa"], order["batch"], pace_s, order["periods"], order.get("kill_at"))
            say(measured=measured)


if __name__ == "__main__":
    main(sys.argv[1])
