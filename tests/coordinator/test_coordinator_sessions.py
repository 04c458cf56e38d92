"""What waits on a stream is bounded: the newest of a kind replaces the older, and an end is not lost."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from chappe.coordinator.sessions import Outbox, PublishWatcher, StreamError
from chappe.core.effects import Assign
from chappe.v1 import coordinator_pb2 as pb

WELCOME = pb.JoinReply(welcome=pb.Welcome(run="r"))
RELEASED = pb.JoinReply(released=pb.Released())


def assign(epoch: int) -> Assign:
    return Assign("w", 1, 1, epoch, (), ())


def encode(assign: Assign) -> pb.JoinReply:
    return pb.JoinReply(assignment=pb.Assignment(epoch=assign.epoch))


async def said(outbox: Outbox) -> list[str]:
    kinds = []
    async for message in outbox.messages():
        kind = str(message.WhichOneof("message"))
        kinds.append(f"{kind} {message.assignment.epoch}" if kind == "assignment" else kind)
    return kinds


async def test_the_newest_assignment_replaces_the_unsent_one() -> None:
    outbox = Outbox(encode)
    outbox.put(WELCOME)
    for epoch in range(1, 1000):
        outbox.put(assign(epoch))
    outbox.put(RELEASED)
    outbox.close()
    assert await said(outbox) == ["welcome", "assignment 999", "released"]


async def test_an_assignment_that_comes_while_one_is_sent_follows_it() -> None:
    outbox = Outbox(encode)
    outbox.put(assign(1))
    messages = outbox.messages()
    assert (await anext(messages)).assignment.epoch == 1
    later = asyncio.ensure_future(anext(messages))
    await asyncio.sleep(0)
    outbox.put(assign(2))
    assert (await later).assignment.epoch == 2
    outbox.close()
    assert await anext(messages, None) is None


async def test_an_error_ends_the_stream_at_once_and_the_first_end_counts() -> None:
    outbox = Outbox(encode)
    outbox.put(WELCOME)
    outbox.close(StreamError(grpc.StatusCode.UNAVAILABLE, "stops"))
    outbox.close(StreamError(grpc.StatusCode.INTERNAL, "later"))
    with pytest.raises(StreamError, match="stops"):
        await said(outbox)


def watcher() -> PublishWatcher:
    elapsed = iter(range(1000))
    return PublishWatcher(lambda: pb.PublicationStatus(elapsed_s=next(elapsed)))


ACCEPTED = pb.PublishEvent(accepted=pb.Accepted(version=3))


async def test_progress_is_held_back_and_the_end_is_not() -> None:
    watched = watcher()
    seen: list[str] = []

    async def watch() -> None:
        async for message in watched.messages():
            seen.append(str(message.WhichOneof("message")))
            if seen[-1] == "accepted":
                for _ in range(100):
                    watched.progressed()
            elif seen[-1] == "progress":
                for _ in range(100):
                    watched.progressed()
                watched.finish(pb.PublicationStatus(version=3))

    watched.answer(ACCEPTED)
    await watch()
    assert seen == ["accepted", "progress", "finished"]


async def test_time_passing_is_progress() -> None:
    watched = watcher()
    watched.answer(ACCEPTED)
    messages = watched.messages()
    assert (await anext(messages)).WhichOneof("message") == "accepted"
    assert (await anext(messages)).WhichOneof("message") == "progress"
    await messages.aclose()  # type: ignore[attr-defined]


async def test_nothing_is_shown_before_the_answer() -> None:
    watched = watcher()
    messages = watched.messages()
    first = asyncio.ensure_future(anext(messages))
    for _ in range(3):
        watched.progressed()
        await asyncio.sleep(0)
    watched.answer(ACCEPTED)
    assert (await first).WhichOneof("message") == "accepted"


async def test_an_answer_and_an_end_that_come_together_are_both_said() -> None:
    watched = watcher()
    watched.answer(ACCEPTED)
    watched.fail(StreamError(grpc.StatusCode.ABORTED, "changed", "failed"))
    watched.finish(pb.PublicationStatus())
    messages = watched.messages()
    assert (await anext(messages)).WhichOneof("message") == "accepted"
    with pytest.raises(StreamError, match="changed"):
        await anext(messages)


async def test_already_published_ends_the_stream() -> None:
    watched = watcher()
    watched.answer(pb.PublishEvent(already=pb.AlreadyPublished(root="r")))
    assert [str(m.WhichOneof("message")) async for m in watched.messages()] == ["already"]
    assert watched.ended
