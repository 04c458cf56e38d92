"""The dial-back over real connections: yes for what listens, no for what does not, in time either way."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from chappe.coordinator import dialback
from chappe.coordinator.dialback import DialBack
from chappe.hop.net import load_tls, open_server, parse_address
from chappe.keys import init_fleet, issue


async def test_what_listens_can_be_dialled() -> None:
    server = await open_server(parse_address("127.0.0.1:0", "127.0.0.1"), None, {})
    try:
        assert await DialBack(None).try_address(str(server.address), "a")
    finally:
        await server.stop(0)


async def test_nobody_there_or_no_answer_or_no_address_is_a_no() -> None:
    dial_back = DialBack(None, limit_s=0.3)
    with socket.socket() as silent, socket.socket() as unused:
        for each in (silent, unused):
            each.bind(("127.0.0.1", 0))
        silent.listen()  # takes connections and never speaks
        nobody = f"127.0.0.1:{unused.getsockname()[1]}"
        mute = f"127.0.0.1:{silent.getsockname()[1]}"
        answers = await asyncio.gather(*(dial_back.try_address(a, "a") for a in (nobody, mute, "nonsense")))
    assert answers == [False, False, False]


async def test_with_tls_it_has_to_be_a_node_of_that_name(tmp_path: Path) -> None:
    init_fleet(tmp_path / "keys")
    tls = {}
    for name in ("coordinator", "relay-1"):
        files = issue(tmp_path / "keys", name)
        tls[name] = load_tls(files.cert, files.key, files.ca)
    server = await open_server(parse_address("127.0.0.1:0", "127.0.0.1"), tls["relay-1"], {})
    try:
        dial_back = DialBack(tls["coordinator"], limit_s=1.0)
        assert await dial_back.try_address(str(server.address), "relay-1")
        assert not await dial_back.try_address(str(server.address), "relay-2")
    finally:
        await server.stop(0)


async def test_it_is_tried_again_until_it_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialback, "AGAIN_S", 0.05)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = parse_address(f"127.0.0.1:{unused.getsockname()[1]}")
    attempts = DialBack(None, limit_s=0.3).attempts(str(address), "a")
    assert [await anext(attempts), await anext(attempts)] == [False, False]  # down at the join, and still
    server = await open_server(address, None, {})
    try:
        async with asyncio.timeout(60):
            later = [reachable async for reachable in attempts]
    finally:
        await server.stop(0)
    assert later[-1]
    assert not any(later[:-1])
