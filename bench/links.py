"""Hosts behind shaped links, on one machine: a network namespace per host, joined by a bridge in one of their own.

    switch namespace (bridge) ──veth── host namespace        tbf on the host's side shapes what it sends (uplink),
                              ──veth── host namespace        tbf on the bridge's side what it receives (downlink)

A link with delay, jitter or loss has netem below its tbf where the kernel has it, and is a pair of TAP devices with a
process between them where not (`bench.tunlink`). Nothing of it touches the machine's own network. Names carry the pid
of the process that made them, so that `clean` removes what a crashed run left and nothing else. Needs root, iproute2,
and the kernel's veth, bridge and sch_tbf.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import IO

from bench.tunlink import TUN, TunLink
from bench.wire import Counts, Impairment

PREFIX = "chappe"
BURST_BYTES = 128 << 10
"""32 KiB costs four times the CPU (a wake-up for every packet), 512 KiB gives bytes away."""
LATENCY_MS = 50
_TAP_QUEUE_FRAMES = 4000  # what may come while the link's process is not on a processor: 0.5 s of 100 Mbit/s
_OURS = re.compile(rf"{PREFIX}-(\d+)-\S+")


class LinksUnavailableError(Exception):
    """Shaped links cannot be made here; the message says why."""


def unavailable_reason() -> str | None:
    """Why shaped links cannot be made on this machine, or None when they can."""
    if os.geteuid() != 0:
        return "shaped links need root (network namespaces)"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"shaped links need {' and '.join(missing)} (package iproute2)"
    return None


@dataclass(frozen=True, slots=True)
class Link:
    """A host's access link. Rates count Ethernet frames, as tc does; None leaves a direction unshaped."""

    up_bytes_per_s: float | None = None
    down_bytes_per_s: float | None = None
    mtu: int = 1500
    burst_bytes: int = BURST_BYTES
    delay_s: float = 0.0
    """One way, in each direction: the path between two hosts has a round trip of twice the sum of theirs."""
    jitter_s: float = 0.0
    """On top of the delay, uniform from 0 to this; frames keep their order."""
    loss: float = 0.0
    """Share of the frames that vanish, in each direction."""
    seed: int = 0
    """Of the user-space link's dice. netem throws its own."""

    @property
    def impaired(self) -> bool:
        return bool(self.delay_s or self.jitter_s or self.loss)

    def impairment(self, direction: str) -> Impairment:
        """What the user-space link does; tbf does the rates."""
        seed = 2 * self.seed + (direction == "down")
        return Impairment(self.delay_s, self.jitter_s, self.loss, seed=seed)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LinksUnavailableError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def qdiscs(link: Link, rate_bytes_per_s: float | None, netem: bool) -> list[tuple[str, ...]]:
    """What tc hangs on the device of one direction, root first; empty for a direction that nothing is done to."""
    found: list[tuple[str, ...]] = []
    place: tuple[str, ...] = ("root",)
    if netem and link.impaired:
        delay = ("delay", f"{link.delay_s * 1e3:g}ms") if link.delay_s else ()
        loss = ("loss", f"{link.loss * 100:g}%") if link.loss else ()
        found.append((*place, "handle", "1:", "netem", "limit", "100000", *delay, *loss))
        place = ("parent", "1:1")
    if rate_bytes_per_s is not None:
        rate = ("rate", f"{round(rate_bytes_per_s * 8)}bit", "burst", str(link.burst_bytes))
        found.append((*place, "handle", "2:", "tbf", *rate, "latency", f"{LATENCY_MS}ms"))
    return found


class Host:
    """One namespace with one address. Made by `Network.host`."""

    def __init__(self, network: Network, name: str, number: int, link: Link) -> None:
        self.name = name
        self.address = f"10.77.{number // 250}.{number % 250 + 1}"
        self.link = link
        self.processes: list[subprocess.Popen[bytes]] = []
        self._network = network
        self._namespace = network.namespace(name)
        self._port = f"p{number}"  # on the bridge's side
        self._tun: TunLink | None = None

    def up(self) -> None:
        """Make the namespace and its cable. Called once, by the network."""
        switch = self._network.switch
        _run("ip", "netns", "add", self._namespace)
        if self.link.impaired and not self._by_netem(self.link):
            self._cable(switch)
        else:
            peer = ("type", "veth", "peer", "name", "eth0", "netns", self._namespace)
            _run("ip", "-n", switch, "link", "add", self._port, *peer)
        _run("ip", "-n", switch, "link", "set", self._port, "mtu", str(self.link.mtu), "master", "br0", "up")
        for device in ("lo", "eth0"):
            _run("ip", "-n", self._namespace, "link", "set", device, "mtu", str(self.link.mtu), "up")
        _run("ip", "-n", self._namespace, "address", "add", f"{self.address}/16", "dev", "eth0")
        self.shape(self.link)

    def _cable(self, switch: str) -> None:
        up, down = self.link.impairment("up"), self.link.impairment("down")
        try:
            self._tun = TunLink(switch, self._port, self._namespace, "eth0", up, down)
        except OSError as error:
            raise LinksUnavailableError(f"delay and loss need netem or {TUN}: {error}") from error
        for namespace, device in ((switch, self._port), (self._namespace, "eth0")):
            _run("ip", "-n", namespace, "link", "set", device, "txqueuelen", str(_TAP_QUEUE_FRAMES))

    def _by_netem(self, link: Link) -> bool:
        """netem lets jitter reorder frames, so jitter is for the user-space link everywhere."""
        return self._network.has_netem and not link.jitter_s

    def shape(self, link: Link) -> None:
        """Change the link's rates, delay and loss now; running transfers go on.

        Raises LinksUnavailableError when the link was made without delay and loss, and the kernel has no netem.
        """
        if self._tun is not None:
            self._tun.change(link.impairment("up"), link.impairment("down"))
        elif link.impaired and not self._by_netem(link):
            raise LinksUnavailableError(
                f"{self.name} was made without delay, jitter and loss, and this kernel has no netem to add them: "
                "make the host with one of them (a loss of 1e-9 will do)"
            )
        for namespace, device, rate in (
            (self._namespace, "eth0", link.up_bytes_per_s),
            (self._network.switch, self._port, link.down_bytes_per_s),
        ):
            wanted = qdiscs(link, rate, netem=self._tun is None)
            if len(wanted) == 1 and wanted[0][0] == "root":  # in one step: nothing passes unshaped meanwhile
                _run("tc", "-n", namespace, "qdisc", "replace", "dev", device, *wanted[0])
                continue
            delete = ["tc", "-n", namespace, "qdisc", "del", "dev", device, "root"]
            subprocess.run(delete, capture_output=True, check=False)
            for qdisc in wanted:
                _run("tc", "-n", namespace, "qdisc", "add", "dev", device, *qdisc)
        self.link = replace(link, mtu=self.link.mtu)

    def frames(self) -> tuple[Counts, Counts] | None:
        """What the user-space link did to frames (up, down); None on a link without one."""
        return None if self._tun is None else self._tun.counts()

    @property
    def namespace(self) -> str:
        return self._namespace

    def run(self, *command: str) -> str:
        """Run a command in this namespace and return what it says. Raises LinksUnavailableError when it fails."""
        return _run("ip", "netns", "exec", self._namespace, *command)

    def blackhole(self) -> None:
        """Take the bridge's port down: packets vanish both ways, nobody gets a reset."""
        _run("ip", "-n", self._network.switch, "link", "set", self._port, "down")

    def restore(self) -> None:
        """Undo `blackhole`."""
        _run("ip", "-n", self._network.switch, "link", "set", self._port, "up")

    def popen(
        self, command: Sequence[str], *, stdout: IO[bytes] | int | None = None, stderr: IO[bytes] | int | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a process in this namespace; it is ended with the network."""
        process = subprocess.Popen(
            ["ip", "netns", "exec", self._namespace, *command], stdout=stdout, stderr=stderr, start_new_session=True
        )
        self.processes.append(process)
        return process

    def counters(self) -> tuple[int, int]:
        """(sent, received) bytes on the wire of this host since it was made."""
        base = ("ip", "netns", "exec", self._namespace, "cat")
        sent, received = _run(
            *base, "/sys/class/net/eth0/statistics/tx_bytes", "/sys/class/net/eth0/statistics/rx_bytes"
        ).split()
        return int(sent), int(received)

    def down(self) -> None:
        """End this host's processes and remove its namespace."""
        if self._tun is not None:
            self._tun.close()
        _remove_namespace(self._namespace)
        for process in self.processes:
            # One that is only just starting is not in the namespace yet, and would not have been found there.
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class Network:
    """A bridge and its hosts. Use as a context manager: everything is gone afterwards, also on an error.

    >>> with Network() as network:
    ...     trainer = network.host("trainer", Link(up_bytes_per_s=90e6 / 8))
    ...     worker = network.host("w1", Link(30e6 / 8, 30e6 / 8))
    """

    _made = 0

    def __init__(self) -> None:
        if reason := unavailable_reason():
            raise LinksUnavailableError(reason)
        Network._made += 1
        self._tag = f"{PREFIX}-{os.getpid()}-{Network._made}"
        self.switch = self.namespace("switch")
        self.hosts: dict[str, Host] = {}
        self.has_netem = False

    def namespace(self, name: str) -> str:
        return f"{self._tag}-{name}"

    def __enter__(self) -> Network:
        clean()
        try:
            _run("ip", "netns", "add", self.switch)
            _run("ip", "-n", self.switch, "link", "add", "br0", "type", "bridge")
            _run("ip", "-n", self.switch, "link", "set", "br0", "up")
            self.has_netem = _has_netem(self.switch)
        except LinksUnavailableError:
            self.close()
            raise
        return self

    def host(self, name: str, link: Link | None = None) -> Host:
        """Add a host. Names are unique in a network."""
        host = Host(self, name, len(self.hosts), link or Link())
        self.hosts[name] = host  # first: what fails half way is cleaned up with the rest
        host.up()
        return host

    def close(self) -> None:
        """End every process of every host and remove all namespaces."""
        for host in self.hosts.values():
            host.down()
        self.hosts.clear()
        _remove_namespace(self.switch)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _has_netem(namespace: str) -> bool:
    """Tried out: a module that is not loaded yet is in no list."""
    command = ["tc", "-n", namespace, "qdisc", "add", "dev", "br0", "root", "netem", "delay", "1ms"]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        return False
    _run("tc", "-n", namespace, "qdisc", "del", "dev", "br0", "root")
    return True


def _remove_namespace(namespace: str) -> None:
    if not Path("/run/netns", namespace).exists():
        return
    listed = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False)
    for pid in listed.stdout.split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)


def leftovers() -> Iterator[str]:
    """Namespaces that were made by processes which are gone."""
    directory = Path("/run/netns")
    if not directory.is_dir():
        return
    for entry in sorted(directory.iterdir()):
        match = _OURS.fullmatch(entry.name)
        if match and not Path("/proc", match[1]).exists():
            yield entry.name


def clean() -> list[str]:
    """Remove what crashed runs left behind, and return the names."""
    names = list(leftovers())
    for name in names:
        _remove_namespace(name)
    return names
