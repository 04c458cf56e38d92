"""A fault of this program in a thread of a data connection: whoever waits for the hop raises it, and nothing hangs."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any, Never

import pytest
from fakes import MemoryOrigin, start_node
from tcp_rig import Held, become, no_threads_left, payload_of, serve

from chappe.core.reasons import ParentLossReason
from chappe.hop import tcp_receive

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


async def on_tcp(stack: AsyncExitStack) -> Held:
    """A hop in the middle of its payload."""
    source = MemoryOrigin(payload_of(12))
    parent, child = await serve(stack, source), await start_node(stack, "child")
    held = Held(source, parent, child)
    source.release(4)
    held.start()
    await held.on_tcp()
    await become(lambda: len(child.object.ledger.held) == 4)
    return held


@pytest.mark.parametrize("fault", [TypeError, ValueError, RuntimeError])
@pytest.mark.parametrize("where", ["in the taker", "in the frame"])
async def test_in_the_receiving_thread(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch, fault: type[Exception], where: str
) -> None:
    held = await on_tcp(stack)

    def fail(*_: Any, **__: Any) -> Never:
        raise fault("of this program")

    if where == "in the taker":
        monkeypatch.setattr(held.child.object, "put_chunks", fail)
    else:
        monkeypatch.setattr(tcp_receive, "decode_head", fail)
    held.source.release()
    with pytest.raises(fault, match="of this program"):
        await asyncio.wait_for(held.task, 30)
    assert held.fallbacks == [], "it is not the connection"
    await become(no_threads_left)


async def test_in_the_sending_thread(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The parent tells of it in its log, the child of a parent that is lost."""
    held = await on_tcp(stack)

    def fail(chunk: int) -> Never:
        raise TypeError(f"of this program, at chunk {chunk}")

    monkeypatch.setattr(held.source, "read_chunk", fail)
    held.source.release()
    end = await asyncio.wait_for(held.task, 30)
    assert end.reason is ParentLossReason.BROKEN
    assert "of this program, at chunk 4" in caplog.text
    assert held.parent.service.streams.backlog_bytes() == 0
    await become(no_threads_left)
