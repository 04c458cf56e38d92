"""The whole way of an object through a relay; and each row of the list in chappe.core.transfer has its test."""

from __future__ import annotations

import re
from pathlib import Path

from relay_rig import (
    ALL,
    ROOT_A,
    A,
    P,
    Rig,
    fetching,
    landed,
    of,
    order,
    states,
    target,
)

from chappe.core import transfer
from chappe.core.events import HeldEdge, Holding, ObjectState
from chappe.core.installing import InstallMode
from chappe.core.relay_events import (
    Acknowledge,
    AdmitChildren,
    FetchConnected,
    FetchEnded,
    Install,
    InstallEnded,
    Land,
    Landed,
    OpenFetch,
    OpenObject,
    Progress,
    ReportConnected,
    ReportHolding,
    Retain,
)


def test_every_row_of_the_list_has_its_test() -> None:
    rows = set(re.findall(r"^  ([pcdis]\d+) ", transfer.__doc__ or "", re.MULTILINE))
    files = Path(__file__).parent.glob("test_transfer_*.py")
    tests = {row for file in files for row in re.findall(r"^def test_([pcdis]\d+)_", file.read_text(), re.MULTILINE)}
    assert rows == tests
    assert len(rows) == 42


def test_the_whole_way() -> None:
    rig = Rig(InstallMode.COMMAND)
    effects = rig.assign(target(), order(parent=P))
    assert [type(e) for e in effects] == [OpenObject, AdmitChildren, Retain, Acknowledge, OpenFetch]
    assert rig.fetch().source == P
    assert rig.machine.edges() == ()
    assert of(rig.do(FetchConnected(1)), ReportConnected) == [ReportConnected(HeldEdge(A, 0, "id-p", 1))]
    assert rig.machine.edges() == (HeldEdge(A, 0, "id-p", 1),)
    assert of(rig.do(Progress(A, (), 8)), ReportHolding)[0].holding == Holding(A, ObjectState.RECEIVING, chunks_total=8)
    assert rig.do(Progress(A, (), 8)) == []
    assert states(rig.do(Progress(A, ALL, 8))) == [ObjectState.RECEIVED]
    assert rig.machine.versions()[ObjectState.RECEIVED] == 1
    assert rig.do(FetchEnded(1, None, progressed=True)) == []
    assert of(rig.assign(target(root=ROOT_A), order(parent=P)), Land) == [Land(A, 1, ROOT_A)]
    assert rig.machine.ready() == (False, "no version has landed yet")
    effects = rig.do(Landed(A))
    assert of(effects, ReportHolding)[0].holding == Holding(A, ObjectState.VERIFIED, 1, ROOT_A, ALL, 8)
    assert of(effects, Install) == [Install(1, previous=0)]
    assert rig.machine.ready() == (False, "version 1 has landed and is not installed")
    assert states(rig.do(InstallEnded(1, ok=True))) == [ObjectState.INSTALLED]
    assert rig.machine.ready() == (True, "version 1 is installed")
    assert set(rig.machine.versions().values()) == {1}


def test_without_a_hook_installed_follows_verified() -> None:
    rig = fetching()
    assert states(landed(rig)) == [ObjectState.INSTALLED]
    assert rig.machine.ready()[0]
