"""`relayd`: put the pieces together, run until told to stop, take them apart in the right order.

    store ──recover──▶ Relay ──▶ Relay service (TCP), local service (unix socket), HTTP ──▶ join

Stopping takes less than 5 s: up to 3 s for the coordinator to move the child, then children, servers and hook at once.
A landing that is still at work is cut off by the exit, as a crash would: it is safe at every step.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import grpc.aio
import structlog

from chappe.core.effects import PeerRef
from chappe.core.relay_events import StopRequested
from chappe.errors import UsageError
from chappe.hop.net import (
    COORDINATOR_NAME,
    Address,
    RunningServer,
    Tls,
    advertised_address,
    check_plaintext,
    load_tls,
    open_channel,
    open_server,
    parse_address,
)
from chappe.hop.server import RELAY_SERVICE
from chappe.hop.store import Store
from chappe.hop.streams import asked_streams, streams_number
from chappe.hop.tcp_listen import TcpListener, data_address
from chappe.hop.tcp_routes import TcpRoutes
from chappe.http import HttpServer, serve_http
from chappe.wire.relay_messages import Node
from relayd.config import RelaydSettings
from relayd.local import serve_local
from relayd.relay import Relay, RelayOptions

log = structlog.get_logger()

_STREAM_GRACE_S = 1.0
_THREAD_GRACE_S = 0.5


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The addresses of the settings, parsed and allowed."""

    listen: Address
    coordinator: Address
    advertise: Address | None
    tls: Tls | None
    data: Address | None
    """Where data connections are offered."""

    @classmethod
    def of(cls, settings: RelaydSettings) -> Endpoints:
        """Raises UsageError naming the flag."""
        given = {"--listen": settings.listen, "--coordinator": settings.coordinator}
        if settings.advertise is not None:
            given["--advertise"] = settings.advertise
        if settings.http is not None:
            given["--http"] = settings.http
        addresses = {flag: _address(flag, text) for flag, text in given.items()}
        data = data_address(settings.data_listen, addresses["--listen"])
        if settings.data_listen is not None and data is not None:
            addresses["--data-listen"] = data
        tls = load_tls(settings.tls_cert, settings.tls_key, settings.tls_ca)
        check_plaintext(addresses, tls, settings.insecure)
        if addresses["--coordinator"].port == 0:
            raise UsageError(f"--coordinator {settings.coordinator}: port 0 is nobody's")
        return cls(addresses["--listen"], addresses["--coordinator"], addresses.get("--advertise"), tls, data)


def _address(flag: str, text: str) -> Address:
    try:
        return parse_address(text, "127.0.0.1")
    except UsageError as error:
        raise UsageError(f"{flag}: {error}") from error


@dataclass(frozen=True, slots=True)
class Daemon:
    """A relay that serves. `clean` is false when a thread outlived it: only the end of the process ends that."""

    relay: Relay
    server: RunningServer
    http: HttpServer | None


class _Cut(Exception):  # noqa: N818  # not an error
    """Told to stop while a thread cannot be stopped."""


@asynccontextmanager
async def open_daemon(settings: RelaydSettings, store: Store, endpoints: Endpoints) -> AsyncIterator[Daemon]:
    """A relay on an open and recovered store, until the block is left. Raises _Cut when a thread outlives it."""

    async def describe() -> Node:
        address = await asyncio.to_thread(
            advertised_address, server.address, endpoints.advertise, endpoints.coordinator
        )
        return Node(
            store.worker_id,
            settings.name,
            store.generation,
            store.run,
            str(address),
            settings.uplink,
            settings.downlink,
            settings.price_per_hour,
            settings.rollouts_per_second,
            dialable=not settings.no_dial_in,
            data_port=relay.service.data_port,
        )

    def dial_peer(peer: PeerRef) -> grpc.aio.Channel:
        return open_channel(parse_address(peer.address), endpoints.tls, peer.name)

    relay = Relay(
        store,
        RelayOptions(
            settings.install_hook,
            settings.install_timeout,
            settings.limit_downlink,
            settings.limit_uplink,
            settings.stall_timeout,
            settings.base_store,
        ),
        coordinator=str(endpoints.coordinator),
        describe=describe,
        dial_coordinator=lambda: open_channel(endpoints.coordinator, endpoints.tls, COORDINATOR_NAME),
        dial_peer=dial_peer,
        tcp=TcpRoutes(endpoints.tls, on=settings.transport == "auto", streams=asked_streams(settings.streams)),
    )
    relay.service.connections = streams_number(settings.streams)
    http = None
    async with AsyncExitStack() as stack:
        local = await serve_local(store.layout.socket, relay, settings.name)
        stack.push_async_callback(local.stop, None)
        server = await open_server(endpoints.listen, endpoints.tls, {RELAY_SERVICE: relay.service.add_to})
        stack.push_async_callback(server.stop, _STREAM_GRACE_S)
        if endpoints.data is not None:
            relay.service.tcp = await TcpListener.open(endpoints.data, endpoints.tls)
            stack.push_async_callback(relay.service.tcp.close)
        if settings.http is not None:
            http = await serve_http(settings.http, relay.metrics.registry, relay.machine.ready)
            stack.push_async_callback(http.close)
        relay.start()
        try:
            yield Daemon(relay, server, http)
        finally:
            clean = await relay.close(_THREAD_GRACE_S)
    if not clean:
        raise _Cut


async def run_relayd(settings: RelaydSettings) -> int:
    """Until SIGTERM, SIGINT or a drain (0). Raises ChappeError when it cannot start or is not taken."""
    endpoints = Endpoints.of(settings)
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    store = await asyncio.to_thread(Store.open, settings.store)
    try:
        for note in store.notes:
            log.warning("store_note", note=note)
        await _recover(store, told)
        async with open_daemon(settings, store, endpoints) as daemon:
            log.info(
                "ready",
                name=settings.name,
                address=str(daemon.server.address),
                data=str(daemon.relay.service.tcp.address) if daemon.relay.service.tcp else None,
                http=daemon.http.url if daemon.http else None,
                store=str(store.layout.root),
                run=store.run,
                generation=store.generation,
                tls=endpoints.tls is not None,
            )
            await _until_stopped(daemon.relay, told)
    except _Cut:
        log.info("stopped", reason="a landing or a re-hash was cut off")
        os._exit(0)  # its thread cannot be ended in another way, and the store bears it
    except BaseException:
        store.close()
        raise
    store.close()
    log.info("stopped", reason="done")
    return 0


async def _recover(store: Store, told: asyncio.Event) -> None:
    """Re-hash what an earlier process has received. Raises _Cut when told to stop before the end."""
    recovering = asyncio.create_task(store.recover())
    stopping = asyncio.create_task(told.wait())
    await asyncio.wait((recovering, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not recovering.done():
        raise _Cut
    recovering.result()


async def _until_stopped(relay: Relay, told: asyncio.Event) -> None:
    """Raises what ended the relay, when it did not end by itself."""
    while not relay.stopped.done():
        stopping = asyncio.create_task(told.wait())
        await asyncio.wait((relay.stopped, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if told.is_set():
            told.clear()
            relay.handle(StopRequested())
    relay.stopped.result()
