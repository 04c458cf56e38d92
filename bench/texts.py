"""Sentences to train on: this project's own pages, which every clone has."""

from __future__ import annotations

from pathlib import Path

PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")


def project_texts() -> list[str]:
    here = Path(__file__).parent.parent
    return [line for name in PAGES for line in (here / name).read_text(encoding="utf-8").splitlines()]
