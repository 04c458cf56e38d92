"""What a broadcast costs its hosts: bytes on the trainer's wire, CPU time by network namespace."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path

from bench.links import Network
from bench.systems.programs import program


class Meter:
    """CPU time and wire bytes of the hosts from when it is made until it is read."""

    def __init__(self, network: Network, workers: Sequence[str]) -> None:
        self._network, self._workers = network, workers
        self._sent = wire_bytes_sent(network, "trainer")
        self._sent_by = {name: network.hosts[name].counters()[0] for name in workers}
        self._cpu = cpu_s_by_host(network)

    def read(self, payload_bytes: int) -> tuple[int, float]:
        """(bytes that the trainer sent, CPU seconds per 10^9 payload bytes on a relay)."""
        cpu = cpu_s_by_host(self._network)
        sent = wire_bytes_sent(self._network, "trainer") - self._sent
        passed = {n: self._network.hosts[n].counters()[0] - self._sent_by[n] for n in self._workers}
        relays = [n for n in self._workers if passed[n] >= payload_bytes / 2] or list(self._workers)
        used = statistics.median(cpu[name] - self._cpu[name] for name in relays)
        return sent, used / (payload_bytes / 1e9)


def wire_bytes_sent(network: Network, host: str) -> int:
    """What a shaped uplink has let through, as the shaper counts it: every frame with its headers.

    The device's own counters take a segment that the kernel has not cut into frames yet for one frame.
    """
    command = [program("tc"), "-s", "-j", "-n", network.namespace(host), "qdisc", "show", "dev", "eth0", "root"]
    shown = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return int(shown[0]["bytes"])


def cpu_s_by_host(network: Network) -> dict[str, float]:
    """User and system time of all processes in each namespace, those that have ended and were waited for included."""
    inodes = {Path("/run/netns", network.namespace(name)).stat().st_ino: name for name in network.hosts}
    ticks = dict.fromkeys(network.hosts, 0)
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            host = inodes.get((entry / "ns/net").stat().st_ino)
            if host is not None:
                values = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                ticks[host] += sum(int(value) for value in values[11:15])
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it has just ended
    return {name: count / os.sysconf("SC_CLK_TCK") for name, count in ticks.items()}
