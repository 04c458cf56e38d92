"""Addresses, TLS and gRPC endpoints: how a node listens, dials, and knows whom it talks to.

Knows nothing of objects, chunks or edges. The rules:

- Mutual TLS on both ends or plaintext. Plaintext leaves loopback only when `--insecure` says so.
- The TLS name of a relay or an origin is its worker name, whatever address it has now; that of the coordinator is
  always `coordinator` (`chappe keys issue coordinator`). So a host may move without a new certificate.
- Peers are dialled directly: an HTTP proxy in the environment is not for this traffic.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio

from chappe.errors import ConfigError, UsageError

COORDINATOR_NAME = "coordinator"

# Windows follow the link: without the probe a 100 ms path gave a fifth of its rate. By itself it begins at 64 KiB, of
# which a full queue of 50 ms makes 10 Mbit/s: chains at 30 Mbit/s lost 0.3 to 1.2 s while it learned.
_MEASURED_WINDOW: tuple[tuple[str, int], ...] = (("grpc.http2.bdp_probe", 1), ("grpc.http2.lookahead_bytes", 256 << 10))
# Loopback has no delay to fill. There the probe measures how busy the processor is, and fills 100 MB of window with it.
_LOOPBACK_WINDOW = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 4 << 20))
_COMMON_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.keepalive_time_ms", 10_000),  # a host that lost power is noticed within 15 s
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
)
_SERVER_OPTIONS = (
    *_COMMON_OPTIONS,
    *_MEASURED_WINDOW,
    ("grpc.so_reuseport", 0),  # a second daemon on the same port is an error, not half of the calls
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
)
_CHANNEL_OPTIONS = (
    *_COMMON_OPTIONS,
    ("grpc.use_local_subchannel_pool", 1),  # a connection and a window of its own for every channel
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)


@dataclass(frozen=True, slots=True)
class Address:
    """A host (name, IPv4 or IPv6 without brackets) and a port. Prints as gRPC and people write it."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def with_port(self, port: int) -> Address:
        return Address(self.host, port)


def parse_address(text: str, default_host: str | None = None) -> Address:
    """`host:port`, `10.0.0.1:7400`, `[2001:db8::1]:7400`; with a default host also `:7400`. Port 0 asks for a free one.

    Raises UsageError that says how to write it.
    """
    host, colon, port_text = text.strip().rpartition(":")
    if not colon:
        raise UsageError(f"{text!r} has no port: write HOST:PORT, for instance 127.0.0.1:7400 or [::1]:7400")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        try:
            ipaddress.IPv6Address(host.partition("%")[0])
        except ValueError as error:
            raise UsageError(f"{text!r}: {host!r} is not an IPv6 address") from error
    elif ":" in host:
        raise UsageError(f"{text!r}: write an IPv6 address in brackets, for instance [::1]:7400")
    if not host:
        if default_host is None:
            raise UsageError(f"{text!r} has no host: write HOST:PORT")
        host = default_host
    if any(c.isspace() or c in "/[]@" for c in host):
        raise UsageError(f"{text!r}: {host!r} is not a host name")
    if not (port_text.isascii() and port_text.isdigit()) or int(port_text) > 65535:
        raise UsageError(f"{text!r}: {port_text!r} is not a port (0 to 65535)")
    return Address(host, int(port_text))


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        ip = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        return ip.ipv4_mapped
    return ip


def is_loopback(address: Address) -> bool:
    """True when the address cannot leave this host. Names are not resolved: of them only `localhost` counts."""
    ip = _ip(address.host)
    return ip.is_loopback if ip is not None else address.host.lower() == "localhost"


def is_wildcard(address: Address) -> bool:
    ip = _ip(address.host)
    return ip is not None and ip.is_unspecified


@dataclass(frozen=True, slots=True, repr=False)
class Tls:
    """This node's certificate and key and the fleet's CA, as PEM."""

    cert: bytes
    key: bytes
    ca: bytes


def load_tls(cert: Path | None, key: Path | None, ca: Path | None) -> Tls | None:
    """Read the three PEM files, or none. Raises UsageError naming the flag at fault."""
    paths = {"--tls-cert": cert, "--tls-key": key, "--tls-ca": ca}
    missing = [flag for flag, path in paths.items() if path is None]
    if len(missing) == len(paths):
        return None
    if missing:
        raise UsageError(f"TLS takes --tls-cert, --tls-key and --tls-ca together: {', '.join(missing)} not given")
    pems: list[bytes] = []
    for flag, path in paths.items():
        assert path is not None
        try:
            pems.append(path.read_bytes())
        except OSError as error:
            raise UsageError(f"{flag} {path}: {error.strerror}") from error
    tls = Tls(*pems)
    _check_pair(tls, paths)
    return tls


def _check_pair(tls: Tls, paths: Mapping[str, Path | None]) -> None:
    """gRPC would only fail later, on the first handshake, and without saying why."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

    try:
        certificate = x509.load_pem_x509_certificates(tls.cert)[0]
    except ValueError as error:
        raise UsageError(f"--tls-cert {paths['--tls-cert']}: not a PEM certificate") from error
    try:
        private = load_pem_private_key(tls.key, password=None)
    except (ValueError, TypeError) as error:
        raise UsageError(f"--tls-key {paths['--tls-key']}: not an unencrypted PEM private key") from error
    try:
        x509.load_pem_x509_certificates(tls.ca)
    except ValueError as error:
        raise UsageError(f"--tls-ca {paths['--tls-ca']}: not a PEM certificate") from error
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    if private.public_key().public_bytes(*form) != certificate.public_key().public_bytes(*form):
        raise UsageError(f"--tls-key {paths['--tls-key']} does not belong to --tls-cert {paths['--tls-cert']}")


def check_plaintext(addresses: Mapping[str, Address], tls: Tls | None, insecure: bool) -> None:
    """Refuse plaintext beyond loopback. `addresses` maps the flag (`--listen`) to its value. Raises UsageError."""
    if tls is not None or insecure:
        return
    for flag, address in addresses.items():
        if not is_loopback(address):
            raise UsageError(
                f"{flag} {address} is not loopback and there is no TLS: give --tls-cert, --tls-key and --tls-ca "
                "(chappe keys issue), or --insecure to send in plaintext"
            )


def advertised_address(listen: Address, advertise: Address | None, coordinator: Address) -> Address:
    """What peers are to dial: `--advertise` if given, else where this node listens, and for a wildcard the local
    address that leads to the coordinator. Call it with the port that was really bound. Sends nothing.

    Raises ConfigError when there is no route to the coordinator.
    """
    if advertise is not None:
        return advertise if advertise.port else advertise.with_port(listen.port)
    if not is_wildcard(listen):
        return listen
    problem: OSError | None = None
    try:
        found = socket.getaddrinfo(coordinator.host, coordinator.port or 1, type=socket.SOCK_DGRAM)
    except OSError as error:
        found, problem = [], error
    for family, kind, protocol, _, target in found:
        if family == socket.AF_INET6 and _ip(listen.host) == ipaddress.IPv4Address("0.0.0.0"):  # noqa: S104
            continue  # this node does not listen there
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.connect(target)  # a datagram socket: picks the route, sends nothing
            except OSError as error:
                problem = error
                continue
            return Address(str(probe.getsockname()[0]), listen.port)
    why = f": {problem.strerror or problem}" if problem is not None else ""
    raise ConfigError(f"no local address leads to the coordinator at {coordinator}{why}: give --advertise HOST:PORT")


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A started gRPC server and the address it really has."""

    server: grpc.aio.Server
    address: Address

    async def stop(self, grace_s: float | None = None) -> None:
        await self.server.stop(grace_s)


async def open_server(
    listen: Address, tls: Tls | None, services: Mapping[str, Callable[[grpc.aio.Server], None]]
) -> RunningServer:
    """Start a server with these services (full name -> how to add it), health and reflection.

    Raises ConfigError when it cannot listen there.
    """
    from grpc_health.v1 import health, health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha import reflection

    server = grpc.aio.server(options=_SERVER_OPTIONS)
    health_servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    for name, add in services.items():
        add(server)
        await health_servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
    await health_servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    reflection.enable_server_reflection((*services, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    try:
        if tls is None:
            port = server.add_insecure_port(str(listen))
        else:
            credentials = grpc.ssl_server_credentials(
                [(tls.key, tls.cert)], root_certificates=tls.ca, require_client_auth=True
            )
            port = server.add_secure_port(str(listen), credentials)
    except RuntimeError as error:
        await server.stop(None)
        raise ConfigError(
            f"cannot listen on {listen}: in use, or not an address of this host: choose another"
        ) from error
    await server.start()
    return RunningServer(server, listen.with_port(port))


def open_channel(address: Address, tls: Tls | None, expected_name: str) -> grpc.aio.Channel:
    """A channel that connects on first use. With TLS the peer must show a certificate for `expected_name`."""
    window = _LOOPBACK_WINDOW if is_loopback(address) else _MEASURED_WINDOW
    options: tuple[tuple[str, int | str], ...] = (*_CHANNEL_OPTIONS, *window)
    if tls is None:
        return grpc.aio.insecure_channel(str(address), options=options)
    credentials = grpc.ssl_channel_credentials(tls.ca, tls.key, tls.cert)
    options = (*options, ("grpc.ssl_target_name_override", expected_name))
    return grpc.aio.secure_channel(str(address), credentials, options=options)


def peer_name(context: grpc.aio.ServicerContext) -> str | None:  # type: ignore[type-arg]  # no call of it matters
    """The name in the certificate of whoever called, None on a plaintext connection."""
    auth = context.auth_context()
    for key in ("x509_common_name", "x509_subject_alternative_name"):
        for value in auth.get(key, ()):
            name = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
            if name:
                return name
    return None
