"""kill -9 at random points while a delta is applied: the old version is whole, and the next process goes on."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from chappe.hop.store import Store
from chappe.hop.verify import verify_directory
from tests.hop.deltamodels import delta_model, files_of, full_model
from tests.hop.storekit import receive, tree

REPOSITORY = Path(__file__).parents[2]
BASE = full_model(files_of(1), f"{1:032x}")
TARGET = full_model(files_of(1, step=3), f"{2:032x}")
DELTA = delta_model(BASE, TARGET, f"{4:032x}").delta


def prepare(path: Path) -> None:
    with Store.open(path) as store:
        receive(store, BASE)
        store.land(BASE.object_id, 1, BASE.root)
        receive(store, DELTA).flush()


def land(path: Path, root: str, step: int, seed: int) -> bool:
    """False when it was killed."""
    command = [sys.executable, "-m", "tests.hop.dying", str(path), root, str(step), str(seed)]
    code = subprocess.run(command, cwd=REPOSITORY, timeout=120, check=False).returncode
    assert code in (0, -signal.SIGKILL)
    return code == 0


@pytest.mark.parametrize("kills", [4, pytest.param(100, marks=[pytest.mark.soak, pytest.mark.timeout(900)])])
def test_killed_at_random_points(tmp_path: Path, kills: int) -> None:
    """Each time one to three operations further than an attempt that begins anew would get."""
    rng = random.Random(kills)
    killed = stores = 0
    while killed < kills:
        path = tmp_path / str(stores)
        stores += 1
        prepare(path)
        while not land(path, TARGET.root, rng.randint(2, 60), rng.getrandbits(30)):
            killed += 1
            assert tree(path / "snapshots/1") == BASE.files
            assert tree(path / "current") in (BASE.files, TARGET.files)
        assert tree(path / "current") == TARGET.files
        assert tree(path / "snapshots/1") == BASE.files
        assert verify_directory(path).ok
        with Store.open(path) as store:
            assert store.notes == []
            assert list(store.layout.objects.glob("*/applied")) == []
