"""The shaped-link library itself, in namespaces that the test makes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.links import Link, LinksUnavailableError, Network, clean, leftovers, unavailable_reason

pytestmark = [pytest.mark.shaped]
needs_links = pytest.mark.skipif(unavailable_reason() is not None, reason=unavailable_reason() or "")

ECHO = """
import socket, sys
server = socket.create_server((sys.argv[1], 7000))
print("ready", flush=True)
peer, _ = server.accept()
total = 0
while data := peer.recv(1 << 16):
    total += len(data)
print(total, flush=True)
"""
SEND = """
import socket, sys, time
peer = socket.create_connection((sys.argv[1], 7000), timeout=float(sys.argv[3]))
peer.sendall(bytes(int(sys.argv[2])))
"""
CRASH = """
import os
from bench.links import Network
network = Network().__enter__()
network.host("a")
print(network.switch, flush=True)
os._exit(1)
"""


@pytest.fixture
def network() -> Iterator[Network]:
    with Network() as made:
        yield made


def transfer(network: Network, size_bytes: int) -> int:
    """Send bytes from host a to host b and return how many arrived."""
    a, b = network.hosts["a"], network.hosts["b"]
    receiver = b.popen([sys.executable, "-c", ECHO, b.address], stdout=subprocess.PIPE)
    assert receiver.stdout is not None
    assert receiver.stdout.readline() == b"ready\n"
    assert a.popen([sys.executable, "-c", SEND, b.address, str(size_bytes), "20"]).wait() == 0
    arrived = int(receiver.stdout.readline())
    receiver.stdout.close()
    return arrived


@needs_links
def test_bytes_cross_a_shaped_link_and_are_counted(network: Network) -> None:
    network.host("a", Link(up_bytes_per_s=80e6 / 8, mtu=9000))
    network.host("b", Link(down_bytes_per_s=200e6 / 8))
    assert transfer(network, 2_000_000) == 2_000_000
    sent, _ = network.hosts["a"].counters()
    assert 2_000_000 < sent < 2_400_000
    shown = subprocess.run(
        ["tc", "-n", network.namespace("a"), "qdisc", "show", "dev", "eth0"], capture_output=True, text=True, check=True
    ).stdout
    assert "tbf" in shown
    assert "rate 80Mbit" in shown


@needs_links
def test_a_link_changes_and_vanishes_on_command(network: Network) -> None:
    a, b = network.host("a", Link(up_bytes_per_s=80e6 / 8)), network.host("b")
    a.shape(Link(up_bytes_per_s=40e6 / 8))
    shown = subprocess.run(
        ["tc", "-n", network.namespace("a"), "qdisc", "show", "dev", "eth0"], capture_output=True, text=True, check=True
    ).stdout
    assert "rate 40Mbit" in shown
    b.blackhole()
    assert a.popen([sys.executable, "-c", SEND, b.address, "1", "0.5"], stderr=subprocess.DEVNULL).wait() != 0
    b.restore()
    assert transfer(network, 1000) == 1000


@needs_links
def test_processes_and_namespaces_are_gone_afterwards() -> None:
    with Network() as network:
        host = network.host("a")
        process = host.popen(["sleep", "600"])
        name = network.namespace("a")
        assert Path("/run/netns", name).exists()
    assert process.returncode is not None
    assert not Path("/run/netns", name).exists()


@needs_links
def test_clean_removes_what_a_crashed_run_left() -> None:
    crashed = subprocess.run([sys.executable, "-c", CRASH], capture_output=True, text=True, check=False)
    left = crashed.stdout.strip()
    assert left in list(leftovers())
    assert left in clean()
    assert left not in list(leftovers())  # of others, which may run beside it, nothing is said


def test_without_root_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(LinksUnavailableError, match="need root"):
        Network()
