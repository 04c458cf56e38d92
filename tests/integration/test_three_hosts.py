"""The README's three hosts, with its commands as they stand there, in three network namespaces.

Each host has a home directory, a /var/lib and an /etc/hosts of its own. What a person does between the commands, the
test does: copies the files that the README names, and waits until a daemon says that it is ready.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.fleet import digests, make_snapshot
from bench.links import Link, Network, unavailable_reason

pytestmark = [
    pytest.mark.shaped,
    pytest.mark.timeout(900),  # nine processes start one after the other
    pytest.mark.skipif(unavailable_reason() is not None, reason=unavailable_reason() or ""),
]
README = Path(__file__).parents[2] / "README.md"
LIMIT_S = 200.0
LINKS = {
    "trainer": Link(up_bytes_per_s=300e6 / 8),
    "worker-1": Link(40e6 / 8, 100e6 / 8),
    "worker-2": Link(40e6 / 8, 100e6 / 8),
}


def commands() -> list[tuple[str, str]]:
    """(host, command) in the order of the section, continued lines joined, comments kept."""
    section = README.read_text(encoding="utf-8").partition("\n## Three hosts\n")[2].partition("\n## ")[0]
    text = "\n".join(re.findall(r"```console\n(.*?)```", section, flags=re.DOTALL)).replace("\\\n", " ")
    return [(match[1], match[2].strip()) for match in re.finditer(r"^([\w-]+)\$ (.*)$", text, flags=re.MULTILINE)]


class Hosts:
    """Three hosts, and what runs on them."""

    def __init__(self, directory: Path, network: Network) -> None:
        self.directory = directory
        self.network = network
        self.daemons: dict[str, tuple[subprocess.Popen[bytes], Path]] = {}
        for name, link in LINKS.items():
            network.host(name, link)
            (directory / name / "home").mkdir(parents=True)
            (directory / name / "lib").mkdir()
        names = "".join(f"{network.hosts[name].address} {name} {name}.example\n" for name in LINKS)
        (directory / "hosts").write_text("127.0.0.1 localhost\n" + names)

    def home(self, name: str) -> Path:
        return self.directory / name / "home"

    def _line(self, name: str, command: str) -> list[str]:
        place = self.directory / name
        script = (
            f"set -e; mount --bind {place / 'lib'} /var/lib; mount --bind {self.directory / 'hosts'} /etc/hosts;"
            f" cd {place / 'home'}; {command}"
        )
        return ["ip", "netns", "exec", self.network.namespace(name), "bash", "-c", script]

    def run(self, name: str, command: str) -> str:
        done = subprocess.run(
            self._line(name, command), capture_output=True, text=True, check=False, env=environment(), timeout=LIMIT_S
        )
        assert done.returncode == 0, f"{name}$ {command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def start(self, name: str, command: str) -> None:
        """In a terminal of its own."""
        log = self.directory / f"{name}-{command.split()[0]}.log"
        with log.open("wb") as out:
            line = self._line(name, "exec " + command)
            daemon = subprocess.Popen(line, stdout=out, stderr=out, env=environment(), start_new_session=True)
        self.daemons[f"{name} {command.split()[0]}"] = daemon, log

    def wait_said(self, daemon: str, word: str) -> None:
        process, log = self.daemons[daemon]
        deadline_s = time.monotonic() + LIMIT_S
        while not re.search(rf"\b{word}\b", text := log.read_text(errors="replace")):
            assert process.poll() is None, f"{daemon} ended with {process.returncode}:\n{text}"
            assert time.monotonic() < deadline_s, f"{daemon} does not say {word!r}:\n{text}"
            time.sleep(0.05)

    def stop(self) -> None:
        for process, _ in self.daemons.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process, _ in self.daemons.values():
            process.wait(LIMIT_S)


def environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
    return {**os.environ, "PATH": path, "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    with Network() as network:
        made = Hosts(tmp_path, network)
        try:
            yield made
        finally:
            made.stop()


def test_the_readme_as_it_stands(hosts: Hosts) -> None:
    snapshot = make_snapshot(hosts.home("trainer") / "my-model", 6_000_000)
    relayd = ""
    ran = []
    for name, command in commands():
        if command.startswith("# copy worker-1.pem, worker-1-key.pem and ca.pem to the first rollout host"):
            for worker in ("worker-1", "worker-2"):
                for file in (f"{worker}.pem", f"{worker}-key.pem", "ca.pem"):
                    shutil.copy2(hosts.home("trainer") / "keys" / file, hosts.home(worker))
        elif command.startswith("relayd"):
            if command.startswith("relayd ..."):
                assert "the same with its own name and files" in command
                command = relayd.replace("worker-1", name)
            relayd = command
            hosts.start(name, command)
            hosts.wait_said(f"{name} relayd", "joined")
        elif command.startswith("chappe coordinator"):
            hosts.start(name, command)
            hosts.wait_said("trainer chappe", "coordinator_ready")
        else:
            assert not command.startswith("#")
            hosts.run(name, command)
        ran.append((name, command.split()[0]))
    assert ran == [
        *[("trainer", "chappe"), ("trainer", "for"), ("trainer", "#"), ("trainer", "chappe")],
        *[("worker-1", "relayd"), ("worker-2", "relayd"), ("trainer", "chappe")],
    ]
    for worker in ("worker-1", "worker-2"):
        current = hosts.directory / worker / "lib" / "relayd" / "current"
        assert digests(current.resolve()) == digests(snapshot)
        assert "model.safetensors" in hosts.run(worker, "ls /var/lib/relayd/current/")
    assert list(hosts.home("trainer").rglob("ca-key.pem")) != []
    assert list(hosts.home("worker-1").rglob("ca-key.pem")) == []
