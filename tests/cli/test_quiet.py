"""What a program prints when it cannot listen: our line, and nothing of gRPC's unless it was asked for."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chappe.cli.quiet import quiet_grpc

RAW = "add_port"


@pytest.fixture
def taken() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def ended(arguments: list[str], **environment: str) -> str:
    """What it says before it gives up."""
    inherited = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    result = subprocess.run(
        [sys.executable, "-m", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=inherited | environment,
    )
    assert result.returncode == 2
    return result.stderr


@pytest.mark.parametrize("program", ["relayd", "coordinator"])
def test_an_address_in_use_is_said_in_our_words_only(program: str, taken: str, tmp_path: Path) -> None:
    arguments = {
        "relayd": ["relayd", "--coordinator", "127.0.0.1:1", "--store", str(tmp_path / "store")],
        "coordinator": ["chappe.cli.main", "coordinator", "--state", f"sqlite:///{tmp_path}/state.db"],
    }[program]
    printed = ended([*arguments, "--listen", taken])
    assert f"cannot listen on {taken}" in printed
    assert RAW not in printed
    assert RAW in ended([*arguments, "--listen", taken], GRPC_VERBOSITY="ERROR")


def test_the_environment_is_what_it_was_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRPC_VERBOSITY", raising=False)
    with quiet_grpc():
        assert os.environ["GRPC_VERBOSITY"] == "NONE"
    assert "GRPC_VERBOSITY" not in os.environ
    monkeypatch.setenv("GRPC_VERBOSITY", "DEBUG")
    with quiet_grpc():
        assert os.environ["GRPC_VERBOSITY"] == "DEBUG"
    assert os.environ["GRPC_VERBOSITY"] == "DEBUG"
