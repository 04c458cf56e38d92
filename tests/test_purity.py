"""`core`, `planning` and `payload` decide; they import nothing that waits, asks the time, rolls dice or touches a host.

Walks every import statement (also those inside functions) of these packages, and of what they import of ours.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import chappe

ROOT = Path(next(iter(chappe.__path__)))
PURE = ("core", "planning", "payload")
FORBIDDEN = {
    "aiohttp",
    "asyncio",
    "concurrent",
    "datetime",
    "grpc",
    "http",
    "logging",
    "multiprocessing",
    "os",
    "pathlib",
    "random",
    "secrets",
    "selectors",
    "shutil",
    "signal",
    "socket",
    "sqlalchemy",
    "ssl",
    "structlog",
    "subprocess",
    "sys",
    "tempfile",
    "threading",
    "time",
    "uuid",
    "uvloop",
}
OURS = {f"chappe.{package}" for package in PURE} | {"chappe.errors", "chappe.units"}
FILES = sorted(path for package in PURE for path in (ROOT / package).rglob("*.py"))


def imports(source: str) -> set[str]:
    """Modules named in import statements, full dotted names."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide where a module lives"
            module = node.module or ""
            found |= {f"{module}.{alias.name}" for alias in node.names}
    return found


def impure(source: str) -> set[str]:
    bad = set()
    for name in imports(source):
        top = name.split(".")[0]
        ours = top in ("chappe", "relayd")
        if top in FORBIDDEN or (ours and not any(name == o or name.startswith(o + ".") for o in OURS)):
            bad.add(name)
    return bad


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_module_is_pure(path: Path) -> None:
    assert impure(path.read_text()) == set()


def test_all_three_packages_were_walked() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in FILES} == set(PURE)


@pytest.mark.parametrize(
    "source",
    ["import time", "from os import path", "def f():\n    import random", "from chappe.hop.store import Store"],
)
def test_the_walk_sees(source: str) -> None:
    assert impure(source)
