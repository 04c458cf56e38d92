"""An origin as a node of the fleet: its settings, its server for children, its session with the coordinator.

Holds no publication: who opens it puts sources into `catalog` and offers into `session`.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from uuid import uuid4

import grpc.aio

from chappe.core.probes import ProbeOrder
from chappe.errors import UsageError
from chappe.hop.net import (
    COORDINATOR_NAME,
    Address,
    RunningServer,
    Tls,
    advertised_address,
    check_plaintext,
    open_channel,
    open_server,
    parse_address,
)
from chappe.hop.peering import Peering
from chappe.hop.push import PushEnd
from chappe.hop.pushes import PushEdge
from chappe.hop.server import RELAY_SERVICE
from chappe.hop.streams import Streams, streams_number
from chappe.hop.tcp_listen import TcpListener, data_address
from chappe.hop.tcp_routes import TcpRoutes
from chappe.origin.session import OriginSession
from chappe.publication import PublicationWanted
from chappe.units import parse_rate
from chappe.v1 import coordinator_pb2_grpc
from chappe.v1.relay_pb2 import EndReason

log = logging.getLogger(__name__)  # a library in somebody's trainer: nothing is printed uninvited

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class OriginSettings:
    """Everything an origin needs to know before it opens, checked."""

    coordinator: Address
    listen: Address
    data: Address | None  # where data connections are offered
    streams: int  # how many of them each hop should have
    advertise: Address | None
    uplink_bytes_per_s: float | None
    limit_uplink_bytes_per_s: float | None
    tls: Tls | None
    name: str
    worker_id: str

    @classmethod
    def parse(
        cls,
        *,
        coordinator: str,
        listen: str,
        data_listen: str | None,
        streams: Streams,
        advertise: str | None,
        uplink: str | float | None,
        limit_uplink: str | float | None,
        tls: Tls | None,
        insecure: bool,
        name: str | None,
    ) -> OriginSettings:
        """Raises UsageError naming the argument."""
        dialled = parse_address(coordinator, "127.0.0.1")
        bound = parse_address(listen, "127.0.0.1")
        reached = parse_address(advertise) if advertise is not None else None
        data = data_address(data_listen, bound)
        leaving = {"--coordinator": dialled, "--listen": bound, "--data-listen": data or bound}
        check_plaintext(leaving, tls, insecure)
        number = streams_number(streams)
        worker_id = uuid4().hex
        return cls(
            coordinator=dialled,
            listen=bound,
            data=data,
            streams=number,
            advertise=reached,
            uplink_bytes_per_s=_rate("uplink", uplink),
            limit_uplink_bytes_per_s=_rate("limit_uplink", limit_uplink),
            tls=tls,
            name=name or (_certificate_name(tls) if tls is not None else _default_name(worker_id)),
            worker_id=worker_id,
        )


def _rate(name: str, value: str | float | None) -> float | None:
    if value is None or isinstance(value, str):
        return parse_rate(value) if value is not None else None
    if not value > 0:
        raise UsageError(f"{name}={value!r}: a rate in bytes per second is more than zero")
    return float(value)


def _default_name(worker_id: str) -> str:
    """Unique, because two origins of a fleet may not have one name and a host may run several publishers."""
    host = _NOT_IN_NAMES.sub("-", socket.gethostname().partition(".")[0]).strip("-._") or "host"
    return f"origin-{host}-{worker_id[:6]}"


def _certificate_name(tls: Tls) -> str:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    names = x509.load_pem_x509_certificates(tls.cert)[0].subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if not names:
        raise UsageError("the certificate names nobody: give name=, or issue one with `chappe keys issue NAME`")
    return str(names[0].value)


def _log_push(edge: PushEdge, end: PushEnd) -> None:
    log.info("push to %s ended: %s %s", edge.order.child.name, EndReason.Name(end.reason), end.detail)


class OriginNode:
    """Open while something is to be published. `on_unwanted`, `on_wanted`: see OriginSession."""

    def __init__(
        self,
        settings: OriginSettings,
        on_unwanted: Callable[[str], None],
        on_wanted: Callable[[PublicationWanted], None],
    ) -> None:
        self.settings = settings
        self._peering = Peering(
            settings.worker_id,
            open_channel=lambda peer: open_channel(parse_address(peer.address), settings.tls, peer.name),
            spawn=self._keep,
            on_push_end=_log_push,
            limit_uplink_bytes_per_s=settings.limit_uplink_bytes_per_s,
            tcp=TcpRoutes(settings.tls, on=settings.data is not None),
        )
        self.catalog = self._peering.catalog
        self.closed = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._on_unwanted, self._on_wanted = on_unwanted, on_wanted
        self._channel: grpc.aio.Channel | None = None
        self._server: RunningServer | None = None
        self._session: OriginSession | None = None

    @property
    def address(self) -> str:
        """Where workers dial it."""
        assert self._server is not None
        return str(advertised_address(self._server.address, self.settings.advertise, self.settings.coordinator))

    @property
    def session(self) -> OriginSession:
        assert self._session is not None
        return self._session

    @property
    def coordinator(self) -> coordinator_pb2_grpc.CoordinatorStub:
        """For calls other than Join."""
        if self._channel is None:
            self._channel = self._dial()
        return coordinator_pb2_grpc.CoordinatorStub(self._channel)

    def _dial(self) -> grpc.aio.Channel:
        return open_channel(self.settings.coordinator, self.settings.tls, COORDINATOR_NAME)

    async def open(self, timeout_s: float) -> None:
        """Listen and join. Raises ConfigError, CoordinatorUnavailableError, RefusedError; close it then."""
        self._server = await open_server(
            self.settings.listen,
            self.settings.tls,
            {RELAY_SERVICE: self._peering.service.add_to},
        )
        if self.settings.data is not None:
            self._peering.service.connections = self.settings.streams
            self._peering.service.tcp = await TcpListener.open(self.settings.data, self.settings.tls)
        self._session = OriginSession(
            worker_id=self.settings.worker_id,
            name=self.settings.name,
            address=self.address,
            data_port=self._peering.service.data_port,
            uplink_bytes_per_s=self.settings.uplink_bytes_per_s,
            open_channel=self._dial,
            coordinator=str(self.settings.coordinator),
            guard=self._peering.guard,
            on_unwanted=self._on_unwanted,
            on_children=self._peering.assign,
            on_wanted=self._on_wanted,
            on_probe=lambda order: self._keep(f"probe {order.order}", asyncio.create_task(self._probe(order))),
        )
        self._keep("link reports", asyncio.create_task(self._peering.report_links(self._session.report_links)))
        self._session.start()
        await self._session.ready(timeout_s)

    def _keep(self, name: str, task: asyncio.Task[None]) -> None:
        task.set_name(name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _probe(self, order: ProbeOrder) -> None:
        outcome = await self._peering.probe(order)
        log.info(
            "probed %s: %s (%.0f bytes/s up, %.0f down)",
            order.peer.name,
            outcome.error or "measured",
            outcome.up_bytes_per_s,
            outcome.down_bytes_per_s,
        )
        self.session.report_probe(outcome)

    async def leave(self, timeout_s: float) -> None:
        """Leave the fleet while still serving, so that children are moved before their streams end."""
        if self._session is not None:
            await self._session.leave(timeout_s)

    async def close(self, grace_s: float) -> None:
        """End every stream and stop listening."""
        self.closed = True
        await self.leave(0.0)
        self._peering.service.leave()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.stop(grace_s)
            self._server = None
        listener, self._peering.service.tcp = self._peering.service.tcp, None
        if listener is not None:
            await listener.close()
        if self._channel is not None:
            await self._channel.close()
            self._channel = None
