"""Adapters in a run of their own, beside the base's: only workers with the base take them; the base stays as it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from chappe.cli.localfleet import LocalFleet, RelaySpec
from chappe.errors import PublicationFailedError, UsageError
from chappe.publisher import AsyncPublisher
from chappe.subscriber import Subscriber
from tests.integration.fleet_tools import chappe, digests, make_snapshot, mute_relays, run_cli

pytestmark = pytest.mark.asyncio(loop_scope="function")


def lora(folder: Path, seed: int) -> Path:
    folder.mkdir()
    rng = np.random.default_rng(seed)
    save_file({"lora_A": rng.standard_normal((8, 64), np.float32)}, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text('{"r": 8}')
    return folder


async def test_a_worker_without_the_base_refuses_and_the_others_take_it(tmp_path: Path) -> None:
    await scenario(tmp_path, base_lands=False)


@pytest.mark.soak
async def test_it_takes_it_when_the_base_lands(tmp_path: Path) -> None:
    await scenario(tmp_path, base_lands=True)


async def scenario(tmp_path: Path, *, base_lands: bool) -> None:
    async with LocalFleet(tmp_path / "base", mute_relays(1)) as base:
        model = make_snapshot(tmp_path / "model", 1 << 20, seed=1)
        async with AsyncPublisher(base.address) as publisher:
            root = (await (await publisher.publish(model)).wait(timeout_s=120)).root
        adapters = (
            RelaySpec("with", ("--base-store", str(base.store("w1")))),
            RelaySpec("later", ("--base-store", str(base.store("w2")))),
        )
        async with LocalFleet(tmp_path / "adapters", adapters) as fleet, AsyncPublisher(fleet.address) as publisher:
            one = lora(tmp_path / "one", 1)
            publication = await publisher.publish(one, adapter_of=str(base.store("w1")))
            with pytest.raises(PublicationFailedError, match=f"later: an adapter of {root}, which has not landed in"):
                await publication.wait(timeout_s=120)
            status = await fleet.status()
            states = {relay.name: (relay.state, relay.installed) for relay in status.relays}
            assert states == {"with": ("installed", 1), "later": ("failed", 0)}
            (failed,) = (relay.reason for relay in status.relays if relay.name == "later")
            assert failed.startswith(f"an adapter of {root}")
            assert not (fleet.store("later") / "current").exists()
            landed = digests((fleet.store("with") / "current").resolve())
            assert landed.pop("chappe-adapter.json")
            assert landed == digests(one)
            current = Subscriber(fleet.store("with")).current()
            assert current is not None
            assert current.adapter_of == root

            two = lora(tmp_path / "two", 2)
            if base_lands:
                await base.start_relay(RelaySpec("w2"))  # gets the base from its peer
                await fleet.wait_status(lambda s: all(relay.installed == 1 for relay in s.relays))
            until = "1.0" if base_lands else "0.5"
            publish = ("publish", str(two), "--adapter-of", root, "--until", until, "--base-cache", "none")
            code, _, err = await chappe(fleet, *publish)
            assert code == 0, err
            installed = {relay.name: relay.installed for relay in (await fleet.status()).relays}
            assert installed == {"with": 2, "later": 2 if base_lands else 0}
            with pytest.raises(UsageError, match="adapters are small"):
                await publisher.publish(two, adapter_of=root, payload="delta")
            payload_reasons = {p.payload_reason for p in (await fleet.status()).publications}
            assert payload_reasons == {"adapters are sent in full"}
            async with AsyncPublisher(base.address) as publisher:  # the adapters stay those of the old base
                for seed in (2, 3):
                    newer = make_snapshot(tmp_path / f"model-{seed}", 1 << 20, seed=seed)
                    await (await publisher.publish(newer, until=1.0)).wait(timeout_s=120)
            assert digests(base.store("w1") / "snapshots/1") == digests(model)
        assert digests((base.store("w1") / "current").resolve()) == digests(newer)
        assert (await run_cli("verify", str(base.store("w1"))))[0] == 0
