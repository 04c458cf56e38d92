from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from storekit import CrashError, FaultyDisk

from chappe.errors import StoreCorruptError, StoreLockedError, WrongRunError
from chappe.hop.store import Store


def test_worker_id_stays_and_generation_grows(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s") as store:
        worker_id = store.worker_id
        assert (len(worker_id), store.generation, store.run) == (32, 1, "")
    with Store.open(tmp_path / "s") as store:
        assert (store.worker_id, store.generation) == (worker_id, 2)
    with Store.open(tmp_path / "other") as store:
        assert store.worker_id != worker_id


def test_a_second_process_is_refused_and_told_the_pid(tmp_path: Path) -> None:
    with Store.open(tmp_path):
        with pytest.raises(StoreLockedError, match=f"process {os.getpid()}"):
            Store.open(tmp_path)
        assert json.loads((tmp_path / "worker.json").read_text())["generation"] == 1  # the refused one counted nothing
    Store.open(tmp_path).close()


def test_the_lock_dies_with_its_process(tmp_path: Path) -> None:
    code = "import signal; from pathlib import Path; from chappe.hop.store import Store\n"
    code += f"s = Store.open(Path({str(tmp_path)!r})); print(s.generation, flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        with pytest.raises(StoreLockedError, match=str(process.pid)):
            Store.open(tmp_path)
        process.send_signal(signal.SIGKILL)
        process.wait()
    with Store.open(tmp_path) as store:
        assert store.generation == 2


def test_a_store_belongs_to_one_run(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.bind_run("first")
        store.bind_run("first")
    with Store.open(tmp_path) as store:
        assert store.run == "first"
        with pytest.raises(WrongRunError, match=r"belongs to run 'first'.*serves run 'second'.*another --store"):
            store.bind_run("second")
        assert store.run == "first"


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        "[]",
        '{"worker_id": "", "generation": 1, "run": ""}',
        '{"worker_id": "a", "generation": "1", "run": ""}',
    ],
)
def test_a_foreign_identity_file_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "worker.json").write_text(content)
    with pytest.raises(StoreCorruptError, match=r"worker\.json is not what this program wrote.*remove"):
        Store.open(tmp_path)
    (tmp_path / "worker.json").unlink()
    Store.open(tmp_path).close()  # and the lock was given back


def test_no_generation_is_used_twice_whenever_the_process_dies(tmp_path: Path) -> None:
    seen = 0
    for crash_at in range(1000):
        disk = FaultyDisk(crash_at)
        try:
            with Store.open(tmp_path, disk) as store:
                assert store.generation > seen
                seen = store.generation
        except CrashError:
            with Store.open(tmp_path) as store:
                assert store.generation > seen
                seen = store.generation
        else:
            return
    pytest.fail("opening a store never ended")
