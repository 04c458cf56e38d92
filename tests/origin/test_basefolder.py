"""Bases of runs that are over go; what is in use, was used lately, or is no base stays."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from test_bases import keep, model

from chappe.origin.basefolder import UNUSED_S, default_cache, prune
from chappe.origin.bases import Bases

START_S = 1.7e9


class Clock:
    now_s = START_S

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def published(cache: Path, clock: Clock, run: str, source: Path) -> Path:
    """A run that had its base written at this time, by a process that is over."""
    bases = Bases(cache, now=clock)
    await keep(bases, model(source, 1), 1, run)
    await bases.close()
    os.utime(cache / run / "base.json", (clock.now_s, clock.now_s))
    return cache / run


def folders(home: Path) -> int:
    return sum(path.is_dir() for path in home.iterdir())


async def test_a_base_that_nobody_used_for_14_days_goes_when_another_is_written(tmp_path: Path, clock: Clock) -> None:
    cache = tmp_path / "cache"
    old = await published(cache, clock, "old", tmp_path / "a")
    step = old / f"step-{0:032x}"
    step.mkdir()
    (old / "notes").mkdir()  # nothing of ours
    clock.now_s += UNUSED_S
    other = await published(cache, clock, "other", tmp_path / "b")
    assert (folders(old), folders(other)) == (3, 1)
    clock.now_s += 1.0
    await published(cache, clock, "third", tmp_path / "c")
    assert sorted(path.name for path in old.iterdir()) == ["lock", "notes"]
    assert folders(other) == 1

    again = Bases(cache, now=clock)
    assert await again.get("old") is None
    assert again.why == "nothing was published from here yet"
    root = await keep(again, model(tmp_path / "d", 2), 2, "old")
    base = await again.get("old")
    assert base is not None
    assert base.root == root
    await again.close()


async def test_opening_and_closing_it_count_as_use(tmp_path: Path, clock: Clock) -> None:
    cache = tmp_path / "cache"
    opened, closed = [await published(cache, clock, run, tmp_path / run) for run in ("opened", "closed")]
    long = Bases(cache, now=clock)
    assert await long.get("closed") is not None
    clock.now_s += UNUSED_S - 1.0
    short = Bases(cache, now=clock)
    assert await short.get("opened") is not None
    await short.close()
    await long.close()
    clock.now_s += 2.0
    assert prune(cache, cache / "new", clock.now_s) == []
    clock.now_s += UNUSED_S
    assert sorted(prune(cache, cache / "new", clock.now_s)) == [closed, opened]


async def test_one_that_is_locked_stays_however_old_it_is(tmp_path: Path, clock: Clock) -> None:
    cache = tmp_path / "cache"
    home = await published(cache, clock, "running", tmp_path / "a")
    bases = Bases(cache, now=clock)
    assert await bases.get("running") is not None
    later = clock.now_s + 100 * UNUSED_S
    assert prune(cache, cache / "new", later) == []
    assert folders(home) == 1
    await bases.close()
    assert prune(cache, home, later) == []  # nor the run's own
    assert prune(cache, cache / "new", later) == [home]


async def test_what_is_no_base_is_left_alone(tmp_path: Path, clock: Clock) -> None:
    cache = tmp_path / "cache"
    home = await published(tmp_path / "elsewhere", clock, "run", tmp_path / "a")
    cache.mkdir()
    (cache / "link").symlink_to(home)
    (cache / "file").write_text("")
    (cache / "model" / f"{1:032x}").mkdir(parents=True)
    (cache / "model" / "lock").write_text("")
    assert prune(cache, cache / "new", clock.now_s + 10 * UNUSED_S) == []
    assert folders(home) == 1
    assert (cache / "model" / f"{1:032x}").is_dir()
    assert prune(tmp_path / "nowhere", cache, clock.now_s) == []


def test_where_it_is_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert default_cache() == Path("/x/chappe/base")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache() == Path.home() / ".cache" / "chappe" / "base"
