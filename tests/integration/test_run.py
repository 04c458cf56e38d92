"""A learner and a rollout worker over real daemons: the README's loop, and versions that are asked for."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest

from chappe import Admission, Publisher, RolloutSession, Trajectory
from chappe.cli.localfleet import LocalFleet, RelaySpec, relay_specs
from chappe.loop_thread import shared_loop
from chappe.publication import Publication, PublicationWanted
from chappe.snapshot import Snapshot
from tests.integration.fleet_tools import HTTP, metric_reaches

README = Path(__file__).parents[2] / "README.md"
SIZE = 70_000


@contextmanager
def fleet_of(directory: Path, *coordinator_flags: str) -> Iterator[LocalFleet]:
    fleet = LocalFleet(directory, relay_specs(1), coordinator_flags=(*HTTP, *coordinator_flags))
    shared_loop().run(fleet.__aenter__())
    try:
        yield fleet
    finally:
        shared_loop().run(fleet.__aexit__(None, None, None))


class Buffer:
    def __init__(self) -> None:
        self.queue: Queue[Trajectory] = Queue(maxsize=16)
        self.taken: list[Trajectory] = []

    def put(self, trajectory: Trajectory) -> None:
        self.queue.put(trajectory)

    def take(self, count: int) -> list[Trajectory]:
        taken = [self.queue.get(timeout=60) for _ in range(count)]
        self.taken += taken
        return taken


class Model:
    """The weights of version v are all v."""

    def __init__(self) -> None:
        self.step = 1

    def state_dict(self) -> dict[str, Any]:
        return {"w": np.full(SIZE, self.step, np.float32)}


class Engine:
    """Answers with what its weights are."""

    def __init__(self) -> None:
        self.weights = 0.0

    def load(self, snapshot: Snapshot) -> None:
        self.weights = float(snapshot.load()["w"][-1])

    def generate(self, version: int) -> list[float]:
        return [self.weights] * 4


def loop_of_the_readme() -> str:
    section = README.read_text(encoding="utf-8").partition("\n## The run:")[2].partition("\n## ")[0]
    (block,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert isinstance(block, str)
    return block


def test_the_loop_of_the_readme_runs_as_it_stands_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--kappa", "2", "--batch", "8", "--t-train", "5s")
    with fleet_of(tmp_path / "fleet", *flags) as fleet:
        text = loop_of_the_readme().replace("127.0.0.1:7400", fleet.address)
        text = text.replace("/var/lib/relayd", str(fleet.store("worker-1")))
        model, buffer, engine, over = Model(), Buffer(), Engine(), threading.Event()
        batches: list[list[Trajectory]] = []

        def train(trained: Model, batch: list[Trajectory]) -> None:
            batches.append(batch)
            trained.step += 1

        names: dict[str, Any] = {
            "model": model,
            "buffer": buffer,
            "engine": engine,
            "train": train,
            "running": lambda: not over.is_set(),
            "steps": 6,
            "kappa": 2,
            "batch_size": 8,
        }
        exec(compile(text, "README.md", "exec"), names)
        worker = threading.Thread(target=names["roll_out"])
        worker.start()
        try:
            names["learn"]()
        finally:
            over.set()
            while worker.is_alive():  # it may be about to put one more
                drain(buffer)
                worker.join(0.01)
        assert [len(batch) for batch in batches] == [8] * 6
        for trajectory in buffer.taken:
            assert (trajectory.worker, trajectory.data) == ("worker-1", float(trajectory.version))
        for step, batch in enumerate(batches, start=1):
            assert all(step - 3 <= t.version <= step for t in batch)
        assert "Counts(admitted=48" in capsys.readouterr().out


def drain(buffer: Buffer) -> None:
    while not buffer.queue.empty():
        buffer.queue.get_nowait()


def test_a_version_is_asked_for_when_the_fleet_falls_behind(tmp_path: Path) -> None:
    flags = ("--kappa", "1", "--batch", "4", "--t-train", "5s", "--mode", "asynchronous", "--delta-max", "1")
    asked: Queue[PublicationWanted] = Queue()
    published: Queue[Publication] = Queue()
    publish: list[Callable[[int], Publication]] = []

    def answer(wanted: PublicationWanted) -> None:  # may block: it has a thread of its own
        asked.put(wanted)
        published.put(publish[0](wanted.learner_version))

    with (
        fleet_of(tmp_path / "fleet", *flags) as fleet,
        Publisher(fleet.address, spool=tmp_path, on_wanted=answer) as publisher,
    ):
        publish.append(lambda version: publisher.publish({"w": np.full(SIZE, version, np.float32)}, version=version))
        admission = Admission(2, publisher=publisher)
        publish[0](1).wait(timeout_s=60)
        session = RolloutSession(fleet.store("worker-1"), max_gap=0)
        with session.dispatch(learner_version=1, timeout_s=60) as work:
            old = work.trajectory("old")
        admission.advance(2)
        assert admission.admit(old)
        admission.advance(3)  # two ahead: one more than is allowed
        wanted = asked.get(timeout=60)
        assert (wanted.learner_version, wanted.fleet_version) == (3, 1)
        assert session.dispatch(learner_version=3, timeout_s=60).version == 3
        published.get(timeout=60).wait(timeout_s=60)
        assert publisher.wanted is None
        admission.advance(6)
        assert not admission.admit(old)
        admission.advance(7)
        name = 'chappe_trajectories_total{admitted="false"}'
        assert shared_loop().run(metric_reaches(fleet.coordinator, name, 1)) == 1
        status = shared_loop().run(fleet.wait_status(lambda s: s.training.learner_version == 7)).training
        assert (status.admitted, status.discarded) == (1, 1)


def test_a_worker_that_is_not_needed_stands_by_and_is_called_when_another_goes(tmp_path: Path) -> None:
    """Two of three are enough; the dearest stands by, has every version, and generates when one is gone."""
    flags = ("--kappa", "2", "--batch", "10", "--t-train", "100s")
    specs = tuple(
        RelaySpec(name, (*HTTP, "--price-per-hour", price, "--rollouts-per-second", "0.08"))
        for name, price in (("cheap", "1"), ("fair", "2"), ("dear", "3"))
    )
    fleet = LocalFleet(tmp_path / "fleet", specs, coordinator_flags=(*HTTP, *flags))
    run = shared_loop().run
    run(fleet.__aenter__())
    try:
        with Publisher(fleet.address, spool=tmp_path) as publisher:
            publisher.publish({"w": np.ones(SIZE, np.float32)}, version=1).wait(timeout_s=60)
            duty = run(fleet.wait_status(lambda s: {r.name: r.duty for r in s.relays}.get("dear") == "standby"))
            assert {r.name: r.duty for r in duty.relays} == {"cheap": "active", "fair": "active", "dear": "standby"}
            run(metric_reaches(fleet.workers["dear"], "relayd_standby", 1))
            dear = RolloutSession(fleet.store("dear"))
            assert not dear.duty().active
            result = publisher.publish({"w": np.zeros(SIZE, np.float32)}, version=2).wait(timeout_s=60)
            assert (result.targeted, result.installed) == (2, 2)  # nobody waited for it
            assert dear.dispatch(learner_version=3, timeout_s=60).version == 2  # and it has it all the same
            run(fleet.workers["cheap"].kill())
            woken = dear.wait_active(timeout_s=60)
            assert (woken.state, woken.worker) == ("active", "dear")
            assert "called" in woken.reason
    finally:
        run(fleet.__aexit__(None, None, None))
