"""`chappe coordinator`: put the pieces together, run until told to stop, take them apart in the right order.

    state ──▶ machine ──▶ runner ◀──▶ service ──▶ gRPC server
                 └──▶ metrics ──▶ HTTP server

Stopping: the runner first (a fleet that hears its own streams end would start to repair it), then the streams, then the
state. A restart finds everything where it was, and the nodes come back by themselves.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import structlog

from chappe.coordinator.config import CoordinatorSettings
from chappe.coordinator.dialback import DialBack
from chappe.coordinator.joins import Terms
from chappe.coordinator.machine import FleetMachine
from chappe.coordinator.metrics import CoordinatorMetrics
from chappe.coordinator.runclock import RunClock, read_boot_id
from chappe.coordinator.runner import Runner
from chappe.coordinator.service import CoordinatorService
from chappe.coordinator.state import StateStore
from chappe.core.events import Tick
from chappe.core.state import FleetConfig
from chappe.core.training_config import TrainingConfig
from chappe.hop.net import Address, RunningServer, check_plaintext, load_tls, open_server, parse_address
from chappe.http import HttpServer, serve_http
from chappe.v1 import coordinator_pb2_grpc
from chappe.wire.token import TokenKey

log = structlog.get_logger()

SERVICE_NAME = "chappe.v1.Coordinator"
HEARTBEATS_PER_LEASE = 5
CHECK_STATE_S = 5.0
_STREAM_GRACE_S = 1.0  # for the last word on each stream: a stop takes less than 5 s in all


@dataclass(frozen=True, slots=True)
class Coordinator:
    """A coordinator that runs. `stopped` is set when it cannot go on: `failure` says why."""

    run: str
    address: Address
    http: HttpServer | None
    machine: FleetMachine
    runner: Runner
    _close: Callable[[], Awaitable[None]]

    @property
    def stopped(self) -> asyncio.Event:
        return self.runner.stopped

    async def close(self) -> None:
        """Stop now; leaving the block does it too."""
        await self._close()


@asynccontextmanager
async def open_coordinator(
    settings: CoordinatorSettings, training: TrainingConfig | None = None
) -> AsyncIterator[Coordinator]:
    """A coordinator that serves until the block is left.

    Raises UsageError or StoreError when it cannot start; what ends it later is in `Coordinator.runner.failure`.
    """
    listen = parse_address(settings.listen, "127.0.0.1")
    tls = load_tls(settings.tls_cert, settings.tls_key, settings.tls_ca)
    check_plaintext({"--listen": listen}, tls, settings.insecure)
    async with AsyncExitStack() as stack:
        store = await asyncio.to_thread(StateStore.open, settings.state)
        stack.callback(store.close)
        stored = await asyncio.to_thread(store.load, settings.run, lambda: TokenKey.generate().to_bytes())
        clock = RunClock.resume(stored.clock, read_boot_id())
        grace_s = min(1.0, settings.lease)
        machine = FleetMachine(FleetConfig(stored.run, settings.lease, grace_s, training=training), stored, clock)
        metrics = CoordinatorMetrics(machine.status_view)
        terms = Terms(stored.run, settings.lease, settings.lease / HEARTBEATS_PER_LEASE)
        service = CoordinatorService(terms, TokenKey.from_bytes(stored.token_key), machine, DialBack(tls))
        runner = Runner(machine, write=store.write, deliver=service.deliver, count=metrics.count, clock=clock)
        service.bind(runner)
        server = await open_server(listen, tls, {SERVICE_NAME: _adder(service)})
        stack.push_async_callback(_stop, runner, service, server)
        http = None
        if settings.http is not None:
            http = await serve_http(settings.http, metrics.registry, lambda: _ready(runner))
            stack.push_async_callback(http.close)
        if store.remote:
            watching = asyncio.create_task(_watch(runner, store), name="watch of the database")
            stack.callback(watching.cancel)
        runner.post(Tick())  # sets the timer for what a restart has found
        log.info(
            "coordinator_ready",
            address=str(server.address),
            http=http.url if http else None,
            run=stored.run,
            state=store.shown,
            tls=tls is not None,
        )
        yield Coordinator(stored.run, server.address, http, machine, runner, stack.aclose)


def _adder(service: CoordinatorService) -> Callable[[object], None]:
    return lambda server: coordinator_pb2_grpc.add_CoordinatorServicer_to_server(service, server)


def _ready(runner: Runner) -> tuple[bool, str]:
    """Ready while decisions can be made and kept. How far a version got is no reason to take the coordinator away."""
    why_not = runner.standstill if runner.failure is None else str(runner.failure)
    return (not why_not, why_not or "serving")


async def _watch(runner: Runner, store: StateStore) -> None:
    """A coordinator that has lost its database has lost its lock: it must not find out with its next decision only, and
    one that another has replaced ends."""
    while not runner.stopped.is_set():
        await asyncio.sleep(CHECK_STATE_S)
        await runner.check(store.check)


async def _stop(runner: Runner, service: CoordinatorService, server: RunningServer) -> None:
    await runner.close()
    service.stop()
    await server.stop(_STREAM_GRACE_S)


async def run_coordinator(settings: CoordinatorSettings, training: TrainingConfig | None = None) -> int:
    """Until SIGTERM or SIGINT (0), or until the state cannot be kept (1, with the reason in the log)."""
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    try:
        async with open_coordinator(settings, training) as coordinator:
            waits = [asyncio.create_task(event.wait()) for event in (told, coordinator.stopped)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for task in waits:
                task.cancel()
            failure = coordinator.runner.failure
            log.info("coordinator_stops", reason="signal" if failure is None else "state_lost")
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
    return 0 if failure is None else 1
