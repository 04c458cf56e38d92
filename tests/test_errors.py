"""Errors as other processes see them: a trainer's workers send them to each other, and so do encoders."""

from __future__ import annotations

import pickle

import pytest

from chappe import errors
from chappe.errors import ChappeError, ChunkMismatchError, DeltaError


def _all_below(kind: type[ChappeError]) -> list[type[ChappeError]]:
    return [kind, *(one for below in kind.__subclasses__() for one in _all_below(below))]


PLAIN = [kind for kind in _all_below(ChappeError) if kind.__module__ == errors.__name__ and kind != ChunkMismatchError]


@pytest.mark.parametrize("error", [kind("why") for kind in PLAIN], ids=lambda error: type(error).__name__)
def test_an_error_is_the_same_in_another_process(error: ChappeError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def test_what_it_carries_is_the_same_too() -> None:
    chunk = pickle.loads(pickle.dumps(ChunkMismatchError(7)))
    assert (str(chunk), chunk.chunk) == ("chunk 7 does not match its page", 7)
    assert pickle.loads(pickle.dumps(DeltaError("why", "an object"))).part == "an object"
