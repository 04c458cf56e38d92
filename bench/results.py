"""The JSON that a measurement leaves under `bench/results/`: what ran, on what machine, and what came out."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from chappe.errors import UsageError

RESULTS = Path(__file__).parent / "results"
_PACKAGES = ("chappe", "grpcio", "protobuf", "uvloop", "numpy", "xxhash", "libtorrent")


def environment() -> dict[str, Any]:
    """The machine, the versions, the commit, and how busy the machine was with other things."""
    return {
        "command": _command(),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "changed_files": len(_git("status", "--porcelain", "--untracked-files=no").splitlines()),
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load_average_1_min": os.getloadavg()[0],
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
    }


def write_results(path: Path, name: str, parameters: dict[str, Any], runs: list[dict[str, Any]], **more: Any) -> None:
    """`runs` is one object per run; `more` is what is said about all of them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    report = {"name": name, "environment": environment(), "parameters": parameters, "runs": runs, **more}
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def read_results(path: Path) -> dict[str, Any]:
    """What `write_results` wrote. Raises ValueError, naming the file, when it is something else."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    missing = [key for key in ("name", "environment", "parameters", "runs") if key not in report]
    if missing:
        raise ValueError(f"{path} was not written by a bench: it has no {', '.join(missing)}")
    found: dict[str, Any] = report
    return found


def earlier_runs(path: Path, parameters: dict[str, Any]) -> list[dict[str, Any]]:
    """The runs that a file holds, to add to them; none without the file. Raises UsageError for other parameters."""
    if not path.exists():
        return []
    report = read_results(path)
    if report["parameters"] != parameters:
        raise UsageError(f"--add: {path} was measured with {report['parameters']}, this would be {parameters}")
    runs: list[dict[str, Any]] = report["runs"]
    return runs


def _command() -> str | None:
    """The bench's command line without where it writes; None when this process is something else."""
    program, *arguments = sys.argv
    if Path(program).parent != Path(__file__).parent:
        return None
    kept = []
    words = iter(arguments)
    for word in words:
        if word in ("--output", "--directory", "--logs"):
            next(words, None)
        elif not word.startswith(("--output=", "--directory=", "--logs=")):
            kept.append(word)
    return shlex.join(["python", "-m", "bench", *kept])


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def commit() -> str:
    """What is checked out."""
    return _git("rev-parse", "HEAD")


def _git(*arguments: str) -> str:
    here = Path(__file__).parent
    done = subprocess.run(["git", "-C", here, *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
