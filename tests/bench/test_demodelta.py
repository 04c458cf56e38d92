"""The demo of deltas: its steps, what it says, and that it judges copies itself."""

from __future__ import annotations

import io
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from rich.console import Console
from safetensors.numpy import load_file, save_file

from bench.demodelta import (
    DemoDeltaSettings,
    Version,
    broadcast,
    drawn_steps,
    report,
    sidecars,
    table,
    training,
    write_snapshot,
)
from bench.updates import to_bf16
from chappe.publication import PublicationStatus
from chappe.v1 import coordinator_pb2 as pb


def small_model(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    (folder / "pooling").mkdir(parents=True)
    tensors = {name: 0.02 * rng.standard_normal((256, 128), np.float32) for name in "ab"}
    save_file({**tensors, "ids": np.arange(8)}, folder / "model.safetensors")
    (folder / "pooling/config.json").write_text("{}")
    (folder / ".gitattributes").write_text("not the model's")
    return folder


def test_drawn_steps_are_adam_s(tmp_path: Path) -> None:
    weights = {"a": np.full((4, 4), 0.5, np.float32)}
    first = next(drawn_steps(weights, 1e-2))["a"].view(ml_dtypes.bfloat16).astype(np.float32)
    assert np.allclose(np.abs(first - 0.5), 1e-2, atol=4e-3)  # its first step has the learning rate's length
    assert np.all(weights["a"] == 0.5)


def test_a_step_changes_some_elements_of_what_is_floating(tmp_path: Path) -> None:
    model = small_model(tmp_path / "model")
    steps = training(model, DemoDeltaSettings(generated=True, learning_rate=1e-5))
    one, two = next(steps), next(steps)
    assert one["a"].dtype == ml_dtypes.bfloat16
    assert np.array_equal(one["ids"], np.arange(8))
    share = np.count_nonzero(one["a"].view(np.uint16) != two["a"].view(np.uint16)) / one["a"].size
    assert 0 < share < 0.5
    written = write_snapshot(tmp_path / "v1", one, sidecars(model))
    assert load_file(written / "model.safetensors")["a"].tobytes() == one["a"].tobytes()
    assert (written / "pooling/config.json").read_text() == "{}"
    rounded = to_bf16(np.array([1.0, -2.5], np.float32)).view(ml_dtypes.bfloat16)
    assert rounded.astype(np.float32).tolist() == [1.0, -2.5]


def version(number: int, kind: str, payload_bytes: int, different: tuple[str, ...] = ()) -> Version:
    payload = pb.ObjectStatus(kind=kind, compared_elements=1000 * (kind == "delta"), changed_elements=10)
    message = pb.PublicationStatus(
        version=number, kind=kind, payload_bytes=payload_bytes, snapshot_bytes=1000, targeted=2, payloads=[payload]
    )
    message.t_bcast["1.0"] = 0.5
    return Version(PublicationStatus.from_message(message), 0.1, different)


def test_the_exit_code_is_0_only_if_all_copies_are_identical(capsys: pytest.CaptureFixture[str]) -> None:
    versions = [version(1, "full", 1000), version(2, "delta", 7), version(3, "delta", 13)]
    assert report(versions, relays=2) == 0
    said = capsys.readouterr().out
    assert "All 6 copies" in said
    assert "2 deltas: 20 B to each relay instead of 2 kB (1.00%)" in said
    assert report([*versions, version(4, "delta", 7, ("b",))], relays=2) == 1
    assert "version 4: the copy of b DIFFERS" in capsys.readouterr().out
    out = io.StringIO()
    Console(file=out, width=140).print(table(versions))
    assert "1.00%" in out.getvalue()
    assert "0.70%" in out.getvalue()


async def test_versions_reach_the_relays_and_are_compared(tmp_path: Path) -> None:
    model = small_model(tmp_path / "model")
    settings = DemoDeltaSettings(generated=True, steps=2, relays=2)
    versions = await broadcast(training(model, settings), sidecars(model), tmp_path, settings)
    assert [v.result.kind for v in versions] == ["full", "delta"]
    assert [v.different for v in versions] == [(), ()]
    assert 0 < (versions[1].density or 0) < 0.5
