"""A coordinator and relays as processes on this machine: for `chappe up`, the demo, benchmarks and tests.

Nothing is waited for by sleeping: a daemon's log says where it listens, the coordinator's status stream says who has
joined and how far a publication is. Whatever ends this process ends the daemons (see `chappe.cli.process`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from chappe.cli.client import CoordinatorAddress, connect, get_status
from chappe.cli.process import START_TIMEOUT_S, FleetError, Process
from chappe.cli.settings import NO_TLS, TlsSettings
from chappe.core.views import RelayState
from chappe.errors import StoreError
from chappe.v1 import coordinator_pb2 as pb

_AWAY = (RelayState.ABSENT, RelayState.LOST)


@dataclass(frozen=True, slots=True)
class RelaySpec:
    """One relay: its name, and flags of `relayd` beyond those that every local relay has."""

    name: str
    flags: tuple[str, ...] = ()


def relay_specs(count: int, flags: Sequence[str] = ()) -> tuple[RelaySpec, ...]:
    """`worker-1` to `worker-N`, all with the same flags."""
    return tuple(RelaySpec(f"worker-{i}", tuple(flags)) for i in range(1, count + 1))


@dataclass
class LocalFleet:
    """`async with LocalFleet(directory, relay_specs(3)) as fleet`: all of them joined, all stopped at the end.

    Keeps in `directory`: `coordinator.db`, the relays' stores `<name>/`, and `logs/<name>.log`.
    """

    directory: Path
    relays: tuple[RelaySpec, ...]
    listen: str = "127.0.0.1:0"
    coordinator_flags: tuple[str, ...] = ()
    tls: TlsSettings = NO_TLS
    state: str = ""  # the coordinator's, where it is not to be in `directory`
    coordinator: Process = field(init=False)
    workers: dict[str, Process] = field(init=False, default_factory=dict)

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as on_failure:
            on_failure.push_async_callback(self.stop)
            try:
                (self.directory / "logs").mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise StoreError(
                    f"nothing can be kept in {self.directory}: {error.filename}: {error.strerror}: choose another one"
                ) from error
            await self.start_coordinator(self.listen)
            # All of them, also when one fails: whatever was started is known by then, and stopped.
            starts = (self.start_relay(spec) for spec in self.relays)
            for started in await asyncio.gather(*starts, return_exceptions=True):
                if isinstance(started, BaseException):
                    raise started
            await self.wait_joined(*(spec.name for spec in self.relays))
            on_failure.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def address(self) -> str:
        """HOST:PORT of the coordinator."""
        return str(self.coordinator.ready["address"])

    def store(self, name: str) -> Path:
        return self.directory / name

    async def start_coordinator(self, listen: str) -> Process:
        """Start it, also again after it has ended: its state is kept."""
        state = self.state or f"sqlite:///{self.directory.resolve() / 'coordinator.db'}"
        arguments = [
            "coordinator",
            "--listen",
            listen,
            "--state",
            state,
            "--log-format",
            "json",
            *self.coordinator_flags,
        ]
        self.coordinator = await self._start("coordinator", "chappe.cli.main", arguments)
        await self.coordinator.wait_ready()
        return self.coordinator

    async def start_relay(self, spec: RelaySpec, *, module: str = "relayd") -> Process:
        """Start a relay, also again after it has ended: its store is kept. `module` is what runs as `python -m`."""
        arguments = ["--coordinator", self.address, "--store", str(self.store(spec.name)), "--name", spec.name]
        if "--listen" not in spec.flags:
            arguments += ["--listen", "127.0.0.1:0"]
        arguments += ["--log-format", "json", *spec.flags]
        process = await self._start(spec.name, module, arguments)
        self.workers[spec.name] = process
        await process.wait_ready()
        return process

    async def wait_joined(self, *names: str) -> None:
        """Until the coordinator counts all of them as connected."""
        await self.wait_status(lambda status: set(names) <= {r.name for r in status.relays if r.state not in _AWAY})

    async def wait_status(self, reached: Callable[[pb.Status], bool], timeout_s: float = START_TIMEOUT_S) -> pb.Status:
        """The first status that is as wanted. Raises FleetError when none is, or when a daemon ends meanwhile."""

        async def watch() -> pb.Status:
            async with self.statuses() as statuses:
                async for status in statuses:
                    if reached(status):
                        return status
            raise FleetError(f"the coordinator ended its status stream:\n{self.coordinator.tail()}")

        async def end_of(process: Process) -> pb.Status:
            code = await process.wait()
            raise FleetError(f"{process.name} ended with exit code {code}:\n{process.tail()}")

        running = [p for p in (self.coordinator, *self.workers.values()) if p.returncode is None]
        tasks = [asyncio.create_task(watch()), *(asyncio.create_task(end_of(process)) for process in running)]
        try:
            async with asyncio.timeout(timeout_s):
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        except TimeoutError:
            raise FleetError(
                f"the fleet did not get there in {timeout_s:g} s; logs: {self.directory / 'logs'}"
            ) from None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @asynccontextmanager
    async def statuses(self) -> AsyncIterator[AsyncIterator[pb.Status]]:
        """The coordinator's status, and every change of it."""
        async with connect(CoordinatorAddress(coordinator=self.address), self.tls) as stub:
            yield stub.WatchStatus(pb.StatusRequest())

    async def status(self) -> pb.Status:
        return await get_status(CoordinatorAddress(coordinator=self.address), self.tls)

    async def wait_any_end(self) -> Process:
        """The first daemon that ends by itself."""
        processes = {asyncio.create_task(p.wait()): p for p in (self.coordinator, *self.workers.values())}
        try:
            done, _ = await asyncio.wait(processes, return_when=asyncio.FIRST_COMPLETED)
            return processes[done.pop()]
        finally:
            for task in processes:
                task.cancel()
            await asyncio.gather(*processes, return_exceptions=True)

    async def stop(self) -> None:
        """Stop the relays together, then the coordinator."""
        await asyncio.gather(*(process.stop() for process in self.workers.values()))
        if hasattr(self, "coordinator"):
            await self.coordinator.stop()

    async def _start(self, name: str, module: str, arguments: Sequence[str]) -> Process:
        return await Process.start(name, module, arguments, self.directory / "logs" / f"{name}.log")
