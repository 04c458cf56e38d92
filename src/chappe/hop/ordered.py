"""`map` with threads: results in order, and only so far ahead that memory stays bounded."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


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
