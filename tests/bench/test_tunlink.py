"""Links that delay and lose, with real sockets over real namespaces; what tc is told where there is netem."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.links import Host, Link, LinksUnavailableError, Network, qdiscs, unavailable_reason
from bench.tunlink import TUN, TunLink
from bench.wire import Counts, Impairment
from tests.bench.test_links import transfer

_REASON = unavailable_reason() or (None if TUN.exists() else f"{TUN} is missing")
needs_links = pytest.mark.skipif(_REASON is not None, reason=_REASON or "")

ECHO = """
import socket, sys
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind((sys.argv[1], 7000))
print("ready", flush=True)
while True:
    data, peer = server.recvfrom(100)
    server.sendto(data, peer)
"""
ASK = """
import json, socket, sys, time
peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
peer.connect((sys.argv[1], 7000))
peer.settimeout(float(sys.argv[3]))
trips, answers = [], 0
for number in range(int(sys.argv[2])):
    started = time.monotonic()
    peer.send(number.to_bytes(4, "big"))
    try:
        while int.from_bytes(peer.recv(100), "big") != number:
            pass
        trips.append(time.monotonic() - started)
    except TimeoutError:
        pass
print(json.dumps(trips))
"""


@pytest.fixture
def network() -> Iterator[Network]:
    with Network() as made:
        made.has_netem = False  # it is the user-space link that is tested
        yield made


def echo(host: Host) -> None:
    process = host.popen([sys.executable, "-c", ECHO, host.address], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.stdout.close()


def round_trips(host: Host, address: str, count: int, patience_s: float) -> list[float]:
    """Seconds of each question that was answered."""
    text = host.run(sys.executable, "-c", ASK, address, str(count), str(patience_s))
    trips: list[float] = json.loads(text)
    return trips


@pytest.mark.shaped
@needs_links
def test_no_answer_comes_before_the_round_trip_and_a_change_holds_at_once(network: Network) -> None:
    a, b = network.host("a", Link(delay_s=0.01)), network.host("b", Link(delay_s=0.03, jitter_s=0.01))
    echo(b)
    trips = round_trips(a, b.address, 5, 30)
    assert len(trips) == 5
    assert min(trips) >= 0.08
    b.shape(Link(delay_s=0.15))
    assert min(round_trips(a, b.address, 3, 30)) >= 0.32
    b.shape(Link())  # the other half of the path is still there
    assert min(round_trips(a, b.address, 3, 30)) >= 0.02


@pytest.mark.shaped
@needs_links
def test_frames_are_lost_as_asked_and_every_one_is_accounted_for(network: Network) -> None:
    a, b = network.host("a"), network.host("b", Link(loss=1e-9))
    echo(b)
    assert len(round_trips(a, b.address, 1, 30)) == 1  # from here on they know each other's address
    b.shape(Link(loss=0.2, seed=3))
    answered = len(round_trips(a, b.address, 120, 0.03))
    counts = b.frames()
    assert a.frames() is None
    assert counts is not None
    for way in counts:
        assert way.taken == way.delivered + way.lost
        assert way.overflowed == 0
    up, down = counts
    assert down.taken >= 120
    assert 0.08 < (down.lost + up.lost) / (down.taken + up.taken) < 0.35  # 200 throws: 4 standard deviations
    assert answered < 120
    b.shape(Link(loss=1.0))
    assert round_trips(a, b.address, 2, 0.2) == []
    b.shape(Link())
    assert len(round_trips(a, b.address, 3, 30)) == 3


@pytest.mark.shaped
@needs_links
def test_bytes_cross_a_long_lossy_link_unharmed(network: Network) -> None:
    network.host("a", Link(up_bytes_per_s=80e6 / 8))
    network.host("b", Link(delay_s=0.01, loss=0.01))
    assert transfer(network, 2_000_000) == 2_000_000


@pytest.mark.shaped
@needs_links
def test_a_link_without_a_process_can_not_be_made_lossy_later(network: Network) -> None:
    a = network.host("a")
    with pytest.raises(LinksUnavailableError, match="made without delay"):
        a.shape(Link(loss=0.1))


@pytest.mark.shaped
@needs_links
def test_the_process_of_a_link_is_gone_with_its_network_and_with_its_maker() -> None:
    with Network() as network:
        network.has_netem = False
        host = network.host("a", Link(delay_s=0.01))
        assert host._tun is not None
        pid = host._tun.pid
        assert Path("/proc", str(pid)).exists()
    assert not Path("/proc", str(pid)).exists()

    maker = f"""
from bench.links import Link, Network
import os
network = Network().__enter__()
network.has_netem = False
print(network.host("a", Link(delay_s=0.01))._tun.pid, flush=True)
os.kill(os.getpid(), {int(signal.SIGKILL)})
"""
    made = subprocess.run([sys.executable, "-c", maker], capture_output=True, text=True, check=False)
    pid = int(made.stdout)
    deadline = time.monotonic() + 60
    while Path("/proc", str(pid)).exists() and time.monotonic() < deadline:
        time.sleep(0.05)  # nothing tells of the end of another process's child
    assert not Path("/proc", str(pid)).exists()


@pytest.mark.shaped
@needs_links
def test_clean_says_what_it_removed(capsys: pytest.CaptureFixture[str]) -> None:
    crash = "from bench.links import Network; import os; print(Network().__enter__().switch, flush=True); os._exit(1)"
    left = subprocess.run([sys.executable, "-c", crash], capture_output=True, text=True, check=False).stdout.strip()
    assert Path("/run/netns", left).exists()
    with pytest.raises(SystemExit) as end:
        main(["clean"])
    assert end.value.code == 0
    assert capsys.readouterr().out.strip()
    assert not Path("/run/netns", left).exists()


def test_what_tc_is_told() -> None:
    rate, tbf = 12.5e6, ("tbf", "rate", "100000000bit", "burst", "131072", "latency", "50ms")
    assert qdiscs(Link(), None, netem=True) == []
    assert qdiscs(Link(), rate, netem=True) == [("root", "handle", "2:", *tbf)]
    assert qdiscs(Link(delay_s=0.05), rate, netem=False) == [("root", "handle", "2:", *tbf)]
    netem = ("root", "handle", "1:", "netem", "limit", "100000", "delay", "50ms", "loss", "0.1%")
    lossy = Link(delay_s=0.05, loss=0.001)
    assert qdiscs(lossy, rate, netem=True) == [netem, ("parent", "1:1", "handle", "2:", *tbf)]
    assert qdiscs(lossy, None, netem=True) == [netem]


def test_a_link_that_cannot_start_says_why() -> None:
    with pytest.raises(OSError, match="no-such-namespace"):
        TunLink("no-such-namespace", "p0", "no-such-namespace", "eth0", Impairment(), Impairment())


def test_counts_are_plain_numbers() -> None:
    assert Counts(3, 1, 1, 1).to_json() == {"taken": 3, "delivered": 1, "lost": 1, "overflowed": 1}
