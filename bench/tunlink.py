"""A cable that delays and loses frames, for kernels without netem: two TAP devices and a process between them.

    host namespace: eth0 (TAP) ──▶ Line "up"   ──▶ pN (TAP) :switch namespace
                               ◀── Line "down" ◀──

Run as a process of its own for each host (`TunLink` starts and commands it). It holds both devices: when it ends, for
whatever reason, they are gone. It ends when its standard input does, so it does not outlive who started it. Commands
are JSON lines on standard input, answers JSON lines on standard output:

    {"up": {"delay_s": 0.05, ...}, "down": {...}}   from now on        {} asks only        answer: the counts

One frame is one packet as TCP made it: the kernel segments before a TAP without offloads, so that loss hits packets of
the MTU. A turn of the loop takes all that is there; between two turns it sleeps for half a millisecond, which is what a
frame may be late, never early. Measured on one
of two shared cores, MTU 1500: 100 Mbit/s and its ACKs take 0.17 of a core; unlimited, it carries 600 to 700 Mbit/s.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import select
import struct
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.wire import Counts, Impairment, Line

TURN_S = 0.0005
FRAMES_A_TURN = 1024
FRAME_BYTES_MAX = 65_536 + 64
START_TIMEOUT_S = 30.0
TUN = Path("/dev/net/tun")

_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000


def enter_namespace(name: str) -> None:
    """Move the calling thread into a network namespace of `ip netns`. Raises OSError."""
    with Path("/run/netns", name).open("rb") as handle:
        if ctypes.CDLL(None, use_errno=True).setns(handle.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns: needs root")


def open_tap(namespace: str, device: str) -> int:
    """Make a TAP device in a namespace and return its end here, non-blocking. The calling thread stays there."""
    enter_namespace(namespace)
    tap = os.open(TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _IFF_TAP | _IFF_NO_PI))
    return tap


class Forwarder:
    """Carries frames between two TAP devices, `up` from the first to the second."""

    def __init__(self, host: int, switch: int, up: Impairment, down: Impairment) -> None:
        self.up, self.down = Line(up), Line(down)
        self._ways = ((host, switch, self.up), (switch, host, self.down))
        self._host, self._switch = host, switch

    def serve(self, control: int) -> None:
        """Until the end of the control stream."""
        text = b""
        moved = False
        while True:
            if moved and self._holds():
                time.sleep(TURN_S)
            wait_s = self._wait_s()
            ready, _, _ = select.select([self._host, self._switch, control], [], [], wait_s)
            moved = self._turn()
            if control in ready:
                data = os.read(control, 1 << 16)
                if not data:
                    return
                *lines, text = (text + data).split(b"\n")
                for line in lines:
                    self._command(json.loads(line))

    def _holds(self) -> bool:
        return self.up.next_due_s() is not None or self.down.next_due_s() is not None

    def _wait_s(self) -> float | None:
        due = [at for line in (self.up, self.down) if (at := line.next_due_s()) is not None]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _turn(self) -> bool:
        """Take what has come, deliver what is due. Whether anything moved."""
        moved = False
        for source, target, line in self._ways:
            now = time.monotonic()
            for _ in range(FRAMES_A_TURN):
                try:
                    frame = os.read(source, FRAME_BYTES_MAX)
                except BlockingIOError:
                    break
                line.push(frame, now)
                moved = True
            for frame in line.pop(time.monotonic()):
                moved = True
                try:
                    os.write(target, frame)
                except OSError:
                    continue  # the other side is down: this is how a cable loses what it carried
        return moved

    def _command(self, command: dict[str, Any]) -> None:
        for name, line in (("up", self.up), ("down", self.down)):
            if name in command:
                line.change(Impairment(**command[name]))
        print(json.dumps({"up": self.up.counts.to_json(), "down": self.down.counts.to_json()}), flush=True)


class TunLink:
    """The process between a host and the switch, from outside. Raises OSError or ValueError when it cannot start."""

    def __init__(self, switch: str, port: str, namespace: str, device: str, up: Impairment, down: Impairment) -> None:
        root = Path(__file__).parent.parent
        path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.tunlink", switch, port, namespace, device],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C is for who started it; that closes the link
        )
        try:
            self.change(up, down)  # answered once both devices are there
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def change(self, up: Impairment, down: Impairment) -> None:
        """From now on; what is on its way arrives as it would have."""
        self._ask({"up": asdict(up), "down": asdict(down)})

    def counts(self) -> tuple[Counts, Counts]:
        """Frames (up, down) since the link was made."""
        answer = self._ask({})
        return Counts(**answer["up"]), Counts(**answer["down"])

    def _ask(self, command: dict[str, Any]) -> dict[str, Any]:
        stdin, stdout, stderr = self._process.stdin, self._process.stdout, self._process.stderr
        assert stdin is not None
        assert stdout is not None
        assert stderr is not None
        try:
            stdin.write(json.dumps(command).encode() + b"\n")
            stdin.flush()
            line = stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            said = stderr.read().decode().strip().splitlines()
            raise OSError(f"the user-space link has ended: {said[-1] if said else 'it said nothing'}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process, and with it both devices."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                continue
        self._process.wait()


def main() -> None:
    switch, port, namespace, device = sys.argv[1:]
    switch_tap = open_tap(switch, port)
    host_tap = open_tap(namespace, device)  # last: this process then counts as one of the host's, for `clean`
    Forwarder(host_tap, switch_tap, Impairment(), Impairment()).serve(sys.stdin.fileno())


if __name__ == "__main__":
    main()
