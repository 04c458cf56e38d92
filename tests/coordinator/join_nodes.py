"""Nodes that speak Join and nothing else: what the coordinator sees of a relay or an origin."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from chappe.coordinator.config import CoordinatorSettings
from chappe.coordinator.daemon import Coordinator, open_coordinator
from chappe.v1 import coordinator_pb2 as pb
from chappe.v1 import relay_pb2
from chappe.v1.coordinator_pb2_grpc import CoordinatorStub
from chappe.wire.failures import decode_kind

LIMIT_S = 30.0
ROOT = "xxh3_128:" + "ab" * 16
ROOT_2 = "xxh3_128:" + "cd" * 16
CHUNKS = 8


def object_id(number: int) -> str:
    return f"{number:032x}"


def settings(directory: Path, **changes: Any) -> CoordinatorSettings:
    values = {"listen": "127.0.0.1:0", "state": f"sqlite:///{directory / 'state.db'}"} | changes
    return CoordinatorSettings(**values)


@asynccontextmanager
async def coordinator(directory: Path, **changes: Any) -> AsyncIterator[tuple[Coordinator, CoordinatorStub]]:
    async with (
        open_coordinator(settings(directory, **changes)) as running,
        grpc.aio.insecure_channel(str(running.address)) as channel,
    ):
        yield running, CoordinatorStub(channel)


class Node:
    """One Join stream. `latest` is the newest assignment; `until` waits for one that fits."""

    def __init__(self, stub: CoordinatorStub, worker_id: str, role: int = pb.ROLE_RELAY, **hello: Any) -> None:
        self.worker_id = worker_id
        self.hello = pb.Hello(
            **{
                "protocol_version": 1,
                "role": role,
                "worker_id": worker_id,
                "name": f"name-{worker_id}",
                "generation": 1,
                "address": f"127.0.0.1:{1000 + sum(worker_id.encode())}",
            }
            | hello
        )
        self.welcome: pb.Welcome | None = None
        self.latest = pb.Assignment()
        self.ended_with: pb.JoinReply | grpc.aio.AioRpcError | None = None
        self._call: Any = stub.Join()
        self._news = asyncio.Condition()
        self._write = asyncio.Lock()  # gRPC takes one write at a time
        self._reader: asyncio.Task[None] | None = None

    async def join(self) -> Node:
        await self.send(hello=self.hello)
        self._reader = asyncio.create_task(self._read())
        await self._wait(lambda: self.welcome is not None or self.ended_with is not None)
        return self

    async def send(self, **message: Any) -> None:
        async with self._write:
            await self._call.write(pb.JoinRequest(**message))

    async def _read(self) -> None:
        try:
            async for reply in self._call:
                async with self._news:
                    match reply.WhichOneof("message"):
                        case "welcome":
                            self.welcome = reply.welcome
                        case "assignment":
                            assert reply.assignment.epoch > self.latest.epoch
                            self.latest = reply.assignment
                            await self.send(acknowledge=pb.Acknowledge(epoch=reply.assignment.epoch))
                        case _:
                            self.ended_with = reply
                    self._news.notify_all()
        except grpc.aio.AioRpcError as error:
            async with self._news:
                self.ended_with = error
                self._news.notify_all()

    async def _wait(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S), self._news:
            await self._news.wait_for(condition)

    async def until(self, fits: Callable[[pb.Assignment], bool]) -> pb.Assignment:
        await self._wait(lambda: fits(self.latest))
        return self.latest

    async def end(self) -> pb.JoinReply | grpc.aio.AioRpcError:
        await self._wait(lambda: self.ended_with is not None)
        assert self.ended_with is not None
        return self.ended_with

    async def leave(self) -> None:
        self._call.cancel()
        if self._reader is not None:
            await asyncio.gather(self._reader, return_exceptions=True)

    # ---- what relays and origins say ----

    async def offer(self, number: int, version: int, root: str = "") -> None:
        await self.send(
            offer=pb.Offer(
                object_id=object_id(number),
                version=version,
                kind=relay_pb2.OBJECT_KIND_FULL,
                payload_bytes=1000,
                snapshot_bytes=1000,
                chunks_total=CHUNKS,
                root=root,
            )
        )

    async def announce(self, number: int, root: str = ROOT) -> None:
        await self.send(root=pb.RootAnnounced(object_id=object_id(number), root=root))

    async def report(self, number: int, state: int, version: int, root: str = ROOT) -> None:
        await self.send(holding=pb.HoldingChanged(holding=holding(number, state, version, root)))

    async def install(self, number: int, version: int, root: str = ROOT) -> None:
        """Everything a relay says of an object that goes well."""
        for state in (pb.OBJECT_STATE_RECEIVED, pb.OBJECT_STATE_VERIFIED, pb.OBJECT_STATE_INSTALLED):
            await self.report(number, state, 0 if state == pb.OBJECT_STATE_RECEIVED else version, root)


def holding(number: int, state: int, version: int, root: str = ROOT) -> pb.Holding:
    return pb.Holding(
        object_id=object_id(number),
        version=version,
        root=root if version else "",
        state=state,
        chunks=[relay_pb2.Range(start=0, stop=CHUNKS)],
        chunks_total=CHUNKS,
    )


def publish_request(number: int, version: int = 0, **changes: Any) -> pb.PublishRequest:
    values = {
        "origin_id": "origin",
        "object_id": object_id(number),
        "version": version,
        "until": 1.0,
        "snapshot_bytes": 1000,
    }
    return pb.PublishRequest(**values | changes)


async def event(call: Any, kind: str) -> Any:
    """The next event of this kind on a Publish stream; progress before it is skipped."""
    async with asyncio.timeout(LIMIT_S):
        async for message in call:
            found = message.WhichOneof("message")
            if found == kind:
                return getattr(message, kind)
            assert found == "progress", f"{found} instead of {kind}"
    raise AssertionError(f"the stream ended without {kind}")


async def error_of(call: Any) -> tuple[grpc.StatusCode, str, str]:
    """The code, kind and message with which a call fails."""
    try:
        async with asyncio.timeout(LIMIT_S):
            if hasattr(call, "__aiter__"):
                async for _ in call:
                    pass
            else:
                await call
    except grpc.aio.AioRpcError as error:
        return error.code(), decode_kind(error.trailing_metadata()), error.details() or ""
    raise AssertionError("the call did not fail")


async def fleet(stub: CoordinatorStub, relays: Sequence[str]) -> tuple[Node, list[Node]]:
    """An origin and relays that have joined."""
    origin = await Node(stub, "origin", pb.ROLE_ORIGIN).join()
    return origin, [await Node(stub, worker_id).join() for worker_id in relays]


def parents(nodes: Sequence[Node]) -> dict[str, str]:
    return {node.worker_id: edge.parent.worker_id for node in nodes for edge in node.latest.edges}


async def broadcast(
    stub: CoordinatorStub, origin: Node, relays: Sequence[Node], number: int, version: int = 0, root: str = ROOT
) -> pb.PublicationStatus:
    """A whole publication in which everything goes well."""
    call = stub.Publish(publish_request(number, version))
    accepted = await event(call, "accepted")
    await origin.offer(number, accepted.version)
    await origin.announce(number, root)
    wanted = object_id(number)
    for relay in relays:
        await relay.until(lambda a: any(t.object_id == wanted and t.root == root for t in a.targets))
        await relay.install(number, accepted.version, root)
    finished: pb.PublicationStatus = await event(call, "finished")
    return finished
