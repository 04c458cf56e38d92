from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import grpc.aio
import pytest
from fakes import OBJECT_ID, MemoryOrigin, start_node
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from hypothesis import given
from hypothesis import strategies as st

from chappe.core.reasons import ParentLossReason
from chappe.errors import ConfigError, UsageError
from chappe.hop.guard import AssignedChild
from chappe.hop.net import (
    Address,
    Tls,
    advertised_address,
    check_plaintext,
    is_loopback,
    is_wildcard,
    load_tls,
    open_channel,
    open_server,
    parse_address,
)
from chappe.hop.server import RELAY_SERVICE
from chappe.keys import init_fleet, issue


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:7400", "127.0.0.1", 7400),
        ("[::1]:0", "::1", 0),
        ("[fe80::1%eth0]:7400", "fe80::1%eth0", 7400),
        ("gpu-01.example:65535", "gpu-01.example", 65535),
    ],
)
def test_addresses(text: str, host: str, port: int) -> None:
    address = parse_address(text)
    assert address == Address(host, port)
    assert str(address) == text


def test_a_default_host() -> None:
    assert parse_address(":7400", "127.0.0.1") == Address("127.0.0.1", 7400)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("host", "no port"),
        ("", "no port"),
        (":7400", "no host"),
        ("::1:7400", "brackets"),
        ("[nonsense]:1", "not an IPv6"),
        ("host:http", "not a port"),
        ("host:65536", "not a port"),
        ("host:-1", "not a port"),
        ("host:\u0663", "not a port"),
        ("http://host:1", "brackets"),
        ("ho st:1", "not a host"),
        ("user@host:1", "not a host"),
    ],
)
def test_what_is_not_an_address(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse_address(text)


@given(st.ip_addresses(), st.integers(0, 65535))
def test_every_ip_address_survives_print_and_parse(ip: object, port: int) -> None:
    address = Address(str(ip), port)
    assert parse_address(str(address)) == address


@given(st.text())
def test_any_text_is_an_address_or_a_usage_error(text: str) -> None:
    try:
        address = parse_address(text)
    except UsageError:
        return
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("localhost", True),
        ("LOCALHOST", True),
        ("localhost.example", False),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("gpu-01", False),
    ],
)
def test_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(Address(host, 1)) is loopback


def test_wildcards() -> None:
    assert is_wildcard(Address("0.0.0.0", 1))
    assert is_wildcard(Address("::", 1))
    assert not is_wildcard(Address("10.0.0.1", 1))
    assert not is_wildcard(Address("host", 1))


def test_plaintext_stays_on_loopback() -> None:
    here, away = Address("127.0.0.1", 1), Address("10.0.0.1", 2)
    check_plaintext({"--listen": here, "--coordinator": here}, None, insecure=False)
    check_plaintext({"--listen": away}, None, insecure=True)
    check_plaintext({"--listen": away}, Tls(b"", b"", b""), insecure=False)
    with pytest.raises(UsageError, match=r"--coordinator 10\.0\.0\.1:2 .*--insecure"):
        check_plaintext({"--listen": here, "--coordinator": away}, None, insecure=False)


def test_the_advertised_address() -> None:
    coordinator = Address("127.0.0.1", 7400)
    listen = Address("0.0.0.0", 7401)
    assert advertised_address(listen, Address("public", 99), coordinator) == Address("public", 99)
    assert advertised_address(listen, Address("public", 0), coordinator) == Address("public", 7401)
    assert advertised_address(Address("10.0.0.5", 7401), None, coordinator) == Address("10.0.0.5", 7401)
    assert advertised_address(listen, None, coordinator) == Address("127.0.0.1", 7401)
    assert advertised_address(Address("::", 7401), None, coordinator) == Address("127.0.0.1", 7401)
    with pytest.raises(ConfigError, match="--advertise"):
        advertised_address(listen, None, Address("no-such-host.invalid", 7400))


def test_tls_files_come_together_and_fit(tmp_path: Path) -> None:
    assert load_tls(None, None, None) is None
    init_fleet(tmp_path)
    one, two = issue(tmp_path, "one"), issue(tmp_path, "two")
    assert load_tls(one.cert, one.key, one.ca) == Tls(one.cert.read_bytes(), one.key.read_bytes(), one.ca.read_bytes())
    with pytest.raises(UsageError, match="--tls-key, --tls-ca not given"):
        load_tls(one.cert, None, None)
    with pytest.raises(UsageError, match=r"--tls-key .* does not belong to"):
        load_tls(one.cert, two.key, one.ca)
    with pytest.raises(UsageError, match=r"--tls-cert .*No such file"):
        load_tls(tmp_path / "none", one.key, one.ca)
    for flag, files in {
        "--tls-cert": (one.key, one.key, one.ca),
        "--tls-key": (one.cert, one.cert, one.ca),
        "--tls-ca": (one.cert, one.key, one.key),
    }.items():
        with pytest.raises(UsageError, match=f"{flag} .*not a"):
            load_tls(*files)


def test_a_key_does_not_show_in_a_log(tmp_path: Path) -> None:
    assert "secret" not in repr(Tls(b"cert", b"secret", b"ca"))


async def test_health_reflection_and_unimplemented_probe(stack: AsyncExitStack) -> None:
    node = await start_node(stack, "r1")
    assert node.server.address.port > 0
    async with open_channel(node.server.address, None, "r1") as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", RELAY_SERVICE):
            reply = await health.Check(health_pb2.HealthCheckRequest(service=service))
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        )
        reply = await call.read()
        assert RELAY_SERVICE in {s.name for s in reply.list_services_response.service}
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.stream_stream(f"/{RELAY_SERVICE}/Probe")(iter([b""])).read()
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_port_in_use_is_said(stack: AsyncExitStack) -> None:
    node = await start_node(stack, "r1")
    with pytest.raises(ConfigError, match=f"cannot listen on {node.server.address}"):
        await open_server(node.server.address, None, {})


async def test_ipv6(stack: AsyncExitStack) -> None:
    server = await open_server(parse_address("[::1]:0"), None, {})
    stack.push_async_callback(server.stop, 0)
    async with open_channel(server.address, None, "x") as channel:
        await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tls]:
    ours, theirs = tmp_path_factory.mktemp("ours"), tmp_path_factory.mktemp("theirs")
    init_fleet(ours)
    init_fleet(theirs)
    files = {name: issue(ours, name) for name in ("origin", "r1", "r2")} | {"stranger": issue(theirs, "r1")}
    loaded: dict[str, Tls] = {}
    for name, f in files.items():
        tls = load_tls(f.cert, f.key, f.ca)
        assert tls is not None
        loaded[name] = tls
    return loaded


async def test_mutual_tls(stack: AsyncExitStack, fleet: dict[str, Tls]) -> None:
    source = MemoryOrigin(b"x" * 100)
    source.release()
    origin = await start_node(stack, "origin", source, tls=fleet["origin"])
    origin.guard.assign([AssignedChild(OBJECT_ID, 0, 0, "r1", "r1", 1, 1)])
    relay = await start_node(stack, "r1", tls=fleet["r1"])
    assert (await relay.fetch_from(origin, expected_name="another")).reason is ParentLossReason.UNREACHABLE
    relay.tls = fleet["stranger"]
    assert (await relay.fetch_from(origin)).reason is ParentLossReason.UNREACHABLE
    relay.tls = None
    assert (await relay.fetch_from(origin)).reason is ParentLossReason.UNREACHABLE
    relay.tls = fleet["r2"]  # of this fleet, with the token of another: the certificate must be the child's
    assert (await relay.fetch_from(origin)).reason is ParentLossReason.BAD_TOKEN
    relay.tls = fleet["r1"]
    assert (await relay.fetch_from(origin)).reason is None
    assert relay.object.payload() == b"x" * 100


async def test_a_client_without_a_certificate_is_refused(stack: AsyncExitStack, fleet: dict[str, Tls]) -> None:
    origin = await start_node(stack, "origin", tls=fleet["origin"])
    options = [("grpc.ssl_target_name_override", "origin")]
    credentials = grpc.ssl_channel_credentials(fleet["origin"].ca)
    async with grpc.aio.secure_channel(str(origin.server.address), credentials, options=options) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async with asyncio.timeout(20):
                await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
