"""A small model to publish, and what is left of copies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

SIZE = 300_000  # float32: several chunks, more than one leaf


def write_model(path: Path, seed: int = 0, size: int = SIZE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    save_file({"a": rng.random(size, dtype=np.float32), "b": np.arange(7)}, path)
    return path


def spools(directory: Path) -> list[Path]:
    return sorted(directory.glob("chappe-spool-*"))
