"""A PostgreSQL server for tests: a cluster in a directory of its own, run by an ordinary user, on any port."""

from __future__ import annotations

import os
import pwd
import select
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

USER, PASSWORD = "chappe", "s3cr:t/w@rd"
ESCAPED = "s3cr%3At%2Fw%40rd"
WAIT_S = 60


def program(name: str) -> str | None:
    """Debian has them outside of PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return shutil.which(name) or (str(found[-1]) if found else None)


def unavailable() -> str:
    """Why there is none; empty when there can be."""
    if program("initdb") is None or program("pg_ctl") is None:
        return "PostgreSQL is not installed"
    return "" if os.geteuid() != 0 or _owner() else "PostgreSQL does not run as root, and there is no user postgres"


def _owner() -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return None


class Postgres:
    """`start` it; `close` it in the end."""

    def __init__(self) -> None:
        # Not below pytest's directory, which other users may not enter.
        self._top = Path(tempfile.mkdtemp(prefix="chappe-pg-"))
        self._data = self._top / "data"
        owner = _owner() if os.geteuid() == 0 else None
        self._user = None if owner is None else owner.pw_uid
        if self._user is not None:
            os.chown(self._top, self._user, -1)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        password = self._top / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        self._run("initdb", "-U", USER, "-A", "scram-sha-256", "--pwfile", str(password), "--no-sync")

    def url(self, password: str = ESCAPED, database: str = "postgres") -> str:
        return f"postgresql://{USER}:{password}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Returns when it can be used."""
        options = {  # nothing outside of its directory, or a kill would leave it there
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "dynamic_shared_memory_type": "mmap",
        }
        given = " ".join(f"-c {name}={value}" for name, value in options.items())
        self._run("pg_ctl", "-w", "-t", str(WAIT_S), "-l", str(self._top / "log"), "-o", given, "start")

    def kill(self) -> None:
        """kill -9, of those that serve connections, too. Returns when none is left."""
        lines = (self._data / "postmaster.pid").read_text().splitlines()
        pid = int(lines[0])
        os.kill(pid, signal.SIGSTOP)  # it forks no more
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ends = [os.pidfd_open(each) for each in (pid, *map(int, children))]
        for end in ends:
            signal.pidfd_send_signal(end, signal.SIGKILL)
        for end in ends:
            assert select.select([end], [], [], WAIT_S)[0]
            os.close(end)
        (self._data / "postmaster.pid").unlink()  # its number stays taken until somebody reaps it
        shared_memory = lines[6].split()[1]  # that it is running: the next one would remove it, and cannot know it now
        subprocess.run(["ipcrm", "--shmem-id", shared_memory], check=True)

    def close(self) -> None:
        if (self._data / "postmaster.pid").exists():
            self._run("pg_ctl", "-m", "immediate", "-t", str(WAIT_S), "stop", check=False)
        shutil.rmtree(self._top)

    def _run(self, name: str, *arguments: str, check: bool = True) -> None:
        command = [program(name) or name, "-D", str(self._data), *arguments]
        if self._user is not None:  # not by `subprocess` itself: it would fork, and gRPC's threads do not bear that
            command = ["setpriv", f"--reuid={self._user}", "--clear-groups", *command]
        with (self._top / "out").open("wb") as out:  # a pipe would stay open in the server
            done = subprocess.run(command, cwd=self._top, stdout=out, stderr=out, check=False)
        if check and done.returncode != 0:
            said = [path.read_text() for path in (self._top / "out", self._top / "log") if path.exists()]
            raise AssertionError("\n".join(said))
