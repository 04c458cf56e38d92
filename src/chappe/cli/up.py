"""`chappe up`: a coordinator and relays on this machine, until Ctrl-C."""

from __future__ import annotations

import shlex
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from pydantic import field_validator

from chappe.cli.settings import EXIT_FAILED, NO_TLS, Flat, Rate, Settings
from chappe.errors import UsageError
from chappe.hop.malloc import raise_thresholds


class UpSettings(Settings):
    """A fleet for trying things out: plaintext, on loopback."""

    relays: int = 3
    """How many relays: worker-1 to worker-N."""
    snapshot: Path | None = None
    """Publish this file or directory as soon as the relays have joined."""
    store: Path | None = None
    """Keep the stores and the coordinator's state here; otherwise in a temporary directory, removed at the end."""
    listen: str = "127.0.0.1:7400"
    """HOST:PORT of the coordinator, on loopback; port 0 takes a free one."""
    limit_downlink: Rate | None = None
    """Cap what each relay receives, to see a broadcast and not a copy."""
    limit_uplink: Rate | None = None
    """Cap what each relay sends on."""

    @field_validator("relays")
    @classmethod
    def _relays(cls, value: int) -> int:
        if not 1 <= value <= 256:
            raise ValueError(f"{value} is not a number of relays from 1 to 256")
        return value


DEFAULTS = UpSettings()


def up(*, settings: Annotated[UpSettings, Flat] = DEFAULTS) -> int:
    """Start a coordinator and relays on this machine, and keep them running until Ctrl-C."""
    if settings.snapshot is not None and not settings.snapshot.exists():
        raise UsageError(f"--snapshot {settings.snapshot}: no such file or directory")
    raise_thresholds()  # before gRPC is imported

    from chappe.cli.interrupt import run_interruptible

    return run_interruptible(_run(settings), interrupted_code=0)


async def _run(settings: UpSettings) -> int:
    from chappe.cli.localfleet import LocalFleet, relay_specs
    from chappe.cli.publish import PublishSettings
    from chappe.cli.publishing import run_publish

    flags: list[str] = []
    for name in ("limit_downlink", "limit_uplink"):
        if (rate := getattr(settings, name)) is not None:
            flags += [f"--{name.replace('_', '-')}", f"{rate:.0f}B", f"--{name.removeprefix('limit_')}", f"{rate:.0f}B"]
    async with AsyncExitStack() as stack:
        directory = settings.store or Path(stack.enter_context(TemporaryDirectory(prefix="chappe-up-")))
        fleet = LocalFleet(directory, relay_specs(settings.relays, flags), listen=settings.listen)
        await stack.enter_async_context(fleet)
        say(f"coordinator at {fleet.address}, {settings.relays} relays with their stores in {directory}")
        if settings.snapshot is not None:
            await run_publish(settings.snapshot, PublishSettings(coordinator=fleet.address, base_cache="none"), NO_TLS)
        else:
            say(f"publish:  chappe publish PATH --coordinator {fleet.address}")
        say(f"look:     chappe status --watch --coordinator {fleet.address}")
        say(f"read:     {shlex.quote(str(fleet.store('worker-1') / 'current'))}")
        say("stop:     Ctrl-C")
        ended = await fleet.wait_any_end()
        print(f"chappe up: {ended.name} ended with exit code {ended.returncode}:\n{ended.tail()}", file=sys.stderr)
        return EXIT_FAILED


def say(line: str) -> None:
    print(line, flush=True)
