"""Data connections where something is missing: an address that answers, descriptors, threads. gRPC is always there."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import threading
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
from fakes import MemoryOrigin, start_node
from tcp_rig import LOOPBACK, Held, listener_of, payload_of, route_to, serve
from test_tcp_push import Pushed

from chappe.hop import tcp_dial, tcp_listen
from chappe.hop.meter import GRPC, TCP
from chappe.hop.tcp_dial import dial
from chappe.hop.tcp_listen import TcpListener
from chappe.hop.tcp_receive import TcpRoute
from chappe.wire.tcp_frames import TAKEN


def finds(monkeypatch: pytest.MonkeyPatch, *hosts: str) -> None:
    """A name that has several addresses."""

    async def look_up(_: str, port: int, **__: object) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in hosts]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", look_up)


def never_answers(monkeypatch: pytest.MonkeyPatch, host: str) -> list[str]:
    """Returns what is dialled."""
    loop, dialled = asyncio.get_running_loop(), []
    connect = loop.sock_connect

    async def try_it(connection: socket.socket, address: tuple[str, int]) -> None:
        dialled.append(address[0])
        if address[0] == host:
            await loop.create_future()
        await connect(connection, address)

    monkeypatch.setattr(loop, "sock_connect", try_it)
    return dialled


def child_at(stack: AsyncExitStack, host: str) -> int:
    """Takes one data connection. Returns its port."""
    listening = stack.enter_context(socket.create_server((host, 0)))

    def take() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.sendall(TAKEN)
            connection.recv(1 << 10)

    thread = threading.Thread(target=take, name="child")
    thread.start()
    stack.callback(thread.join, 60)
    return int(listening.getsockname()[1])


@pytest.mark.parametrize("silent", [False, True])
async def test_all_addresses_of_a_name_are_tried(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch, silent: bool
) -> None:
    port = child_at(stack, "127.0.0.1")
    dialled = never_answers(monkeypatch, "127.0.0.3" if silent else "")
    finds(monkeypatch, "127.0.0.3", "127.0.0.2", "127.0.0.1", "127.0.0.4")
    connection = await dial(TcpRoute("name", None, "child"), port, bytes(32))
    assert connection.getpeername() == ("127.0.0.1", port)
    assert dialled == ["127.0.0.3", "127.0.0.2", "127.0.0.1"]
    connection.close()


async def test_none_of_the_addresses_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_dial, "CONNECT_S", 0.1)
    never_answers(monkeypatch, "127.0.0.3")
    with socket.create_server(("127.0.0.9", 0)) as taken:  # nobody else has this port
        port = taken.getsockname()[1]
        finds(monkeypatch, "127.0.0.2", "127.0.0.3")
        with pytest.raises(OSError, match=r"127\.0\.0\.3 did not answer in time"):
            await dial(TcpRoute("name", None, "child"), port, bytes(32))
        finds(monkeypatch, "127.0.0.3", "127.0.0.2")
        with pytest.raises(ConnectionRefusedError):
            await dial(TcpRoute("name", None, "child"), port, bytes(32))


async def test_out_of_descriptors_is_said_now_and_then(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loop = asyncio.get_running_loop()
    accept, failures, again = loop.sock_accept, 0, asyncio.Event()

    async def out_of_descriptors(listening: socket.socket) -> Any:
        nonlocal failures
        failures += 1
        if failures > 20:
            again.set()
            return await accept(listening)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(loop, "sock_accept", out_of_descriptors)
    monkeypatch.setattr(tcp_listen, "_ACCEPT_PAUSE_S", 0.0)
    caplog.set_level(logging.WARNING, "chappe.hop.tcp_listen")
    listener = await TcpListener.open(LOOPBACK, None)
    await asyncio.wait_for(again.wait(), 60)
    assert [record.message for record in caplog.records] == [
        "data connections cannot be accepted: [Errno 24] Too many open files (1 times so far)"
    ]
    failures, again = 0, asyncio.Event()
    monkeypatch.setattr(tcp_listen, "_QUIET_S", 0.0)
    await listener.close()
    listener = await TcpListener.open(LOOPBACK, None)
    await asyncio.wait_for(again.wait(), 60)
    assert "(20 times so far)" in caplog.records[-1].message
    await listener.close()


def no_thread_for(monkeypatch: pytest.MonkeyPatch, name: str) -> list[str]:
    """As where a host or a container has as many as it may have. Returns those that were wanted."""
    start, wanted = threading.Thread.start, []

    def refuse(thread: threading.Thread) -> None:
        if thread.name == name:
            wanted.append(name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    return wanted


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("name", ["chappe-tcp-send", "chappe-tcp-receive"])
async def test_without_a_thread_it_is_grpc(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch, name: str, early: bool
) -> None:
    wanted = no_thread_for(monkeypatch, name)
    source = MemoryOrigin(payload_of(20))
    parent, child = await serve(stack, source), await start_node(stack, "child")
    route = route_to(parent, port=listener_of(parent).address.port if early else 0)
    held = Held(source, parent, child, tcp=replace(route, streams=1))
    source.release()
    held.start()
    assert (await asyncio.wait_for(held.task, 60)).reason is None
    assert child.object.payload() == payload_of(20)
    assert held.meter.transport == GRPC
    assert wanted


@pytest.mark.parametrize("name", ["chappe-tcp-send", "chappe-tcp-receive"])
async def test_without_a_thread_a_pushed_hop_is_grpc(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    wanted = no_thread_for(monkeypatch, name)
    hop = await Pushed.open(stack)
    hop.receive()
    hop.push()
    await hop.comes_to_its_end(GRPC)
    assert wanted


async def test_without_a_thread_for_more_connections_the_first_goes_on(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = MemoryOrigin(payload_of(40))
    parent, child = await serve(stack, source), await start_node(stack, "child")
    parent.service.connections = 4
    held = Held(source, parent, child, tcp=replace(route_to(parent), streams=4))
    start, started = threading.Thread.start, []

    def only_one(thread: threading.Thread) -> None:
        if thread.name == "chappe-tcp-receive":
            started.append(thread)
            if len(started) > 1:
                raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", only_one)
    source.release(2)
    held.start()
    await held.on_tcp()
    source.release()
    assert (await asyncio.wait_for(held.task, 60)).reason is None
    assert child.object.payload() == payload_of(40)
    assert held.meter.transport == TCP
    assert len(started) == 4
