"""`python -m bench report`: the newest JSON of every bench as bench/RESULTS.md, with pictures."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from bench.results import RESULTS, read_results
from bench.sections import OTHER, SECTIONS, Section, Table
from chappe.cli.settings import Flat, Settings
from chappe.errors import UsageError

SHORT = "-short"
_HEAD = """# Results

Written by `python -m bench report` from the newest JSON of each bench in `bench/results/`; run one with
`python -m bench NAME`, or the short forms of all with `make bench`. Ratios compare what ran in the same run; absolute
times hold for the machine that is named. Medians, with the least and the most where there are several runs.
"""


class ReportSettings(Settings):
    """Where from and where to."""

    results: Path = RESULTS
    """The directory of the benches' JSON; pictures are written there."""
    output: Path | None = None
    """The report; RESULTS.md beside that directory."""
    full: Annotated[bool, Parameter(negative="")] = False
    """Leave the short forms out."""


_DEFAULTS = ReportSettings()


def report(*, settings: Annotated[ReportSettings, Flat] = _DEFAULTS) -> int:
    """Write the report. Pictures need matplotlib (extra `bench`)."""
    newest = newest_reports(settings.results, full=settings.full)
    if not newest:
        raise UsageError(f"--results: no results in {settings.results}: run `python -m bench NAME` first")
    output = settings.output or settings.results.parent / "RESULTS.md"
    folder = Path(os.path.relpath(settings.results, output.parent))
    sections = []
    for path, found in newest.items():
        try:
            picture = drawn(found, path.with_suffix(".png"))
            sections.append(render(found, path, folder / picture.name if picture else None))
        except KeyError as error:
            raise UsageError(f"{path} is of another version of this bench (no {error}): run it again") from None
    output.write_text("\n".join([_HEAD, *sections]), encoding="utf-8")
    print(output)
    return 0


def newest_reports(directory: Path, *, full: bool = False) -> dict[Path, dict[str, Any]]:
    """By file, in the order of the sections: of every bench the newest; variants (another MTU) count as benches."""
    found: dict[str, tuple[Path, dict[str, Any]]] = {}
    for path in sorted(directory.glob("*.json")):
        if full and path.stem.endswith(SHORT):
            continue
        one = read_results(path)
        kind = variant(one, path)
        if kind not in found or one["environment"]["when"] > found[kind][1]["environment"]["when"]:
            found[kind] = (path, one)
    order = {name: place for place, name in enumerate(SECTIONS)}
    ranked = sorted(found.items(), key=lambda item: (order.get(item[1][1]["name"], len(order)), item[0]))
    return {path: one for _, (path, one) in ranked}


def variant(found: dict[str, Any], path: Path) -> str:
    """The name, and what makes it another measurement: the file's name without `-short`."""
    name: str = found["name"]
    stem = path.stem.removesuffix(SHORT)
    return stem if stem.startswith(name) else name


def drawn(found: dict[str, Any], path: Path) -> Path | None:
    """The picture's file; None where the bench has none, or matplotlib is missing (which it says)."""
    try:
        from bench.pictures import draw
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        print("no pictures: matplotlib is not installed (pip install '.[bench]')", file=sys.stderr)
        return None
    return path if draw(found, path) else None


def render(found: dict[str, Any], path: Path, picture: Path | None) -> str:
    """One section in Markdown."""
    name = found["name"]
    section = SECTIONS.get(name, Section(name, "", OTHER.tables))
    mtu, kind = found["parameters"].get("mtu", 1500), path.stem.removesuffix(SHORT).removeprefix(f"{name}-")
    title = section.title + (f", MTU {mtu}" if mtu != 1500 else "" if kind in (name, path.stem) else f": {kind}")
    title += " (short form)" if path.stem.endswith(SHORT) else ""
    parts = [f"## {title}", *([section.about] if section.about else [])]
    for table in section.tables(found):
        parts += ["\n".join(markdown(table))] + ([table.note] if table.note else [])
    if picture is not None:
        parts.append(f"![{title}]({picture.as_posix()})")
    parts.append(origin(found, path))
    return "\n\n".join(parts) + "\n"


def markdown(table: Table) -> Iterable[str]:
    yield _row(table.columns)
    yield _row("---" for _ in table.columns)
    for line in table.cells:
        yield _row(line)


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


def origin(found: dict[str, Any], path: Path) -> str:
    """When, on what, from which commit, by which command, with which parameters."""
    where, parameters = found["environment"], found["parameters"]
    changed = f" with {where['changed_files']} changed files" if where["changed_files"] else ""
    command = where.get("command") or f"python -m bench {found['name']}"
    said = ", ".join(f"{key} {_short(value)}" for key, value in parameters.items())
    return (
        f"<sub>{where['when']}, commit {where['commit'][:12]}{changed}; {where['processor']}, {where['cores']} cores,"
        f" {where['system']}, Python {where['python']}, load {where['load_average_1_min']:.1f};"
        f" `{command}`; {said}; {len(found['runs'])} runs in {path.name}.</sub>"
    )


def _short(value: Any) -> str:
    return " ".join(map(str, value)) or "-" if isinstance(value, list) else str(value)
