"""What threads need for numpy: `map` in order, only so far ahead that memory stays bounded; and few hand-overs."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


BRIEF_ELEMENTS = 1 << 16
_brief = threading.Lock()


def one_at_a_time(elements: int) -> AbstractContextManager[object]:
    """For a row of short numpy calls. Each gives up the GIL, and threads that do so wait for each other at every call.

    One thread at a time does that, while others compare, copy and hash: two threads encoded at 1.4 times the speed of
    one instead of 1.0, and decoded at 1.2 instead of 0.8 when this was written (`python -m bench delta` has what it is
    now). Calls for many elements are long, and need no such thing. What processes gain: `chappe.origin.encoders`.
    """
    return _brief if elements < BRIEF_ELEMENTS else nullcontext()


class MapOrdered(Protocol):
    """`map`, or the same with threads: results in order."""

    def __call__(self, function: Callable[[Item], Result], items: Iterable[Item], /) -> Iterable[Result]: ...


class OrderedMap:
    """Works ahead by `ahead` items. An item's error is raised where its result is due; the rest is dropped."""

    def __init__(self, executor: Executor, ahead: int) -> None:
        self._executor = executor
        self._ahead = ahead

    def __call__(self, function: Callable[[Item], Result], items: Iterable[Item], /) -> Iterator[Result]:
        running: deque[Future[Result]] = deque()
        try:
            for item in items:
                running.append(self._executor.submit(function, item))
                if len(running) > self._ahead:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            for future in running:
                future.cancel()
