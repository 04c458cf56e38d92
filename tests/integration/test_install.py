"""The install hook over a whole fleet: what it sees, how it fails, and what counts as installed."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from chappe.cli.localfleet import LocalFleet, RelaySpec
from chappe.errors import PublicationFailedError
from chappe.publisher import AsyncPublisher
from chappe.subscriber import AsyncSubscriber
from tests.integration.fleet_tools import HTTP, chappe, make_snapshot, metrics

MB = 1 << 20


def hook(command: str, *flags: str) -> tuple[str, ...]:
    return (*HTTP, "--install", f"command {command}", *flags)


async def test_a_command_sees_both_versions_and_installed_waits_for_it(tmp_path: Path) -> None:
    """w1's hook waits at a fifo: verified is 2 of 2, installed 1, until it is let go. Once for each version."""
    fifo, calls = tmp_path / "fifo", tmp_path / "calls"
    os.mkfifo(fifo)
    record = f'echo "$CHAPPE_VERSION $CHAPPE_PATH $CHAPPE_PREVIOUS_VERSION $CHAPPE_PREVIOUS_PATH" >> {calls}'
    source = make_snapshot(tmp_path / "model", MB, seed=1)
    specs = (RelaySpec("w1", hook(f"{record}; read go < {fifo}")), RelaySpec("w2", HTTP))
    async with LocalFleet(tmp_path / "fleet", specs) as fleet, AsyncPublisher(fleet.address) as publisher:
        store = fleet.store("w1").resolve()
        expected = []
        for version, previous in ((4, 0), (6, 4)):
            (source / "config.json").write_text(f'{{"version": {version}}}')
            publication = await publisher.publish(source, version=version)
            half = await publication.wait(0.5, timeout_s=60)
            status = await fleet.wait_status(lambda s: s.publications[0].fractions.verified == 1.0)
            assert (half.installed, status.publications[0].fractions.installed) == (1, 0.5)
            assert not publication.done
            shown = {relay.name: relay for relay in status.relays}
            assert (shown["w1"].verified, shown["w1"].installed, shown["w1"].state) == (version, previous, "verified")
            assert (store / "current").resolve() == store / "snapshots" / str(version)  # landed: a reader may follow
            await asyncio.to_thread(fifo.write_text, "go\n")
            assert (await publication.wait(timeout_s=60)).installed == 2
            before = f"{previous} {store}/snapshots/{previous}" if previous else " "
            expected.append(f"{version} {store}/snapshots/{version} {before}")
            assert calls.read_text().splitlines() == expected

        await fleet.workers["w1"].stop()  # a restart does not install again what is installed
        await fleet.start_relay(specs[0])
        await fleet.wait_status(lambda s: all(r.installed == 6 and r.state == "installed" for r in s.relays))
        assert calls.read_text().splitlines() == expected


async def test_a_hook_that_fails_or_hangs_is_said_and_the_rest_goes_on(tmp_path: Path) -> None:
    source = make_snapshot(tmp_path / "model", MB, seed=2)
    fails, hangs, calls = tmp_path / "fails", tmp_path / "hangs", tmp_path / "calls"
    fails.touch()
    hangs.touch()
    specs = (
        RelaySpec(
            "bad", hook(f"echo $CHAPPE_VERSION >> {calls}; ! test -e {fails} || {{ echo out of memory; exit 3; }}")
        ),
        RelaySpec("good", HTTP),
        RelaySpec("slow", hook(f"! test -e {hangs} || sleep 1000", "--install-timeout", "1s")),
    )
    async with LocalFleet(tmp_path / "fleet", specs) as fleet:
        code, out, err = await chappe(fleet, "publish", str(source), "--version", "1", "--json")
        assert (code, out) == (1, "")
        assert "installed on 1 of 3 workers" in err
        assert "out of memory" in err
        status = await fleet.status()
        shown = {relay.name: relay for relay in status.relays}
        assert {name: (r.verified, r.installed) for name, r in shown.items()} == {
            "bad": (1, 0),
            "good": (1, 1),
            "slow": (1, 0),
        }
        assert (shown["bad"].state, shown["bad"].reason) == ("failed", "exit code 3: out of memory")
        assert shown["slow"].state == "failed"
        assert "not done within 1 s" in shown["slow"].reason
        assert status.publications[0].fractions.verified == 1.0
        assert status.publications[0].fractions.installed == pytest.approx(1 / 3)
        assert calls.read_text() == "1\n"  # not tried again
        assert (await metrics(fleet.workers["bad"]))['relayd_snapshot_version{state="installed"}'] == 0

        fails.unlink()
        hangs.unlink()
        (source / "config.json").write_text("{}")
        async with AsyncPublisher(fleet.address) as publisher:
            assert (await (await publisher.publish(source)).wait(timeout_s=60)).installed == 3
        assert calls.read_text() == "1\n2\n"


async def test_an_engine_that_says_no(tmp_path: Path) -> None:
    """`--install confirm`: the engine's word is what counts, also a no; the next version is another question."""
    source = make_snapshot(tmp_path / "model", MB, seed=3)
    specs = (RelaySpec("w1", (*HTTP, "--install", "confirm")),)
    async with LocalFleet(tmp_path / "fleet", specs) as fleet, AsyncPublisher(fleet.address) as publisher:
        engine = AsyncSubscriber(fleet.store("w1"))
        publication = await publisher.publish(source)
        snapshot = await engine.wait(timeout_s=60)
        await engine.confirm(snapshot.version, ok=False, reason="shape mismatch")
        with pytest.raises(PublicationFailedError, match=r"w1: .*shape mismatch"):
            await publication.wait(timeout_s=60)
        (relay,) = (await fleet.status()).relays
        assert (relay.state, relay.verified, relay.installed) == ("failed", 1, 0)
        assert "shape mismatch" in relay.reason

        (source / "config.json").write_text("{}")
        publication = await publisher.publish(source)
        snapshot = await engine.wait(newer_than=1, timeout_s=60)
        assert (await fleet.status()).publications[0].installed == 0
        await engine.confirm(snapshot.version)
        assert (await publication.wait(timeout_s=60)).installed == 1
