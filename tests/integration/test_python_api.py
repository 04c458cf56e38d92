"""The two ends of the Python API over real daemons: what the trainer had is what the engine loads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from chappe import Publisher, Subscriber
from chappe.cli.localfleet import LocalFleet, relay_specs
from chappe.errors import PublicationTimeoutError, RelaydUnavailableError
from chappe.loop_thread import shared_loop

torch = pytest.importorskip("torch")


@contextmanager
def local_fleet(directory: Path, relays: int, *flags: str) -> Iterator[LocalFleet]:
    fleet = LocalFleet(directory, relay_specs(relays, flags))
    shared_loop().run(fleet.__aenter__())
    try:
        yield fleet
    finally:
        shared_loop().run(fleet.__aexit__(None, None, None))


def state_dict(seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    embedding = torch.randn(257, 64, generator=generator).to(torch.bfloat16)
    return {
        "embed.weight": embedding,
        "head.weight": embedding,  # tied
        "proj.weight": torch.randn(64, 96, generator=generator).t(),  # not contiguous
        "scale": torch.tensor(0.5 + seed),
        "experts.weight": torch.randn(8, 8, generator=generator).to(torch.float8_e4m3fn),
        "unused": torch.empty(0, 3),
        "steps": torch.arange(1 << 18),
    }


def test_an_engine_loads_what_the_trainer_published(tmp_path: Path) -> None:
    with local_fleet(tmp_path, 3) as fleet, Publisher(fleet.address, spool=tmp_path) as publisher:
        subscribers = [Subscriber(fleet.store(spec.name)) for spec in fleet.relays]
        assert [subscriber.current() for subscriber in subscribers] == [None] * 3
        mapped = []
        for version in (1, 2, 3):
            result = publisher.publish(state_dict(version), version=version).wait(timeout_s=60)
            assert (result.installed, result.targeted) == (3, 3)
            for subscriber in subscribers:
                snapshot = subscriber.wait(newer_than=version - 1, timeout_s=60)
                assert (snapshot.version, snapshot.root) == (version, result.root)
                mapped.append((version, snapshot.torch()))
                assert subscriber.ensure(learner_version=version + 1, max_gap=1, timeout_s=60).version == version
        for version, tensors in mapped:  # also those of versions that are not current any more
            expected = state_dict(version)
            assert tensors.keys() == expected.keys()
            for name, tensor in expected.items():
                assert tensors[name].dtype == tensor.dtype
                assert torch.equal(tensors[name].float(), tensor.float()), name


def test_an_install_that_an_engine_confirms(tmp_path: Path) -> None:
    with local_fleet(tmp_path, 1, "--install", "confirm") as fleet, Publisher(fleet.address) as publisher:
        subscriber = Subscriber(fleet.store("worker-1"))
        publication = publisher.publish(state_dict(1))
        snapshot = subscriber.wait(timeout_s=60)
        with pytest.raises(PublicationTimeoutError):
            publication.wait(timeout_s=0.2)
        subscriber.confirm(snapshot.version)
        assert publication.wait(timeout_s=60).installed == 1


def test_a_wait_outlives_a_restart_of_relayd(tmp_path: Path) -> None:
    with local_fleet(tmp_path, 1) as fleet, Publisher(fleet.address) as publisher:
        subscriber = Subscriber(fleet.store("worker-1"), relayd_grace_s=60)
        versions: list[int] = []
        waiting = threading.Thread(target=lambda: versions.append(subscriber.wait(timeout_s=100).version))
        waiting.start()
        shared_loop().run(fleet.workers["worker-1"].stop())
        with pytest.raises(RelaydUnavailableError):
            subscriber.current()
        shared_loop().run(fleet.start_relay(fleet.relays[0]))
        shared_loop().run(fleet.wait_joined("worker-1"))
        publisher.publish(state_dict(1)).wait(timeout_s=60)
        waiting.join()
        assert versions == [1]
