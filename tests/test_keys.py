from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest
from cryptography import x509

from chappe.errors import UsageError
from chappe.hop.net import load_tls
from chappe.keys import init_fleet, issue


def test_issue_from_a_new_ca(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet"
    ca_path = init_fleet(fleet)
    files = issue(fleet, "gpu-01.rack_2", addresses=["gpu-01.example", "10.0.0.7", "2001:db8::1"])
    ca = x509.load_pem_x509_certificate(ca_path.read_bytes())
    certificate = x509.load_pem_x509_certificate(files.cert.read_bytes())
    certificate.verify_directly_issued_by(ca)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["gpu-01.rack_2", "gpu-01.example"]
    assert names.get_values_for_type(x509.IPAddress) == [
        ipaddress.ip_address("10.0.0.7"),
        ipaddress.ip_address("2001:db8::1"),
    ]
    assert load_tls(files.cert, files.key, files.ca) is not None
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_keys_are_for_their_owner_only(tmp_path: Path) -> None:
    init_fleet(tmp_path / "fleet")
    files = issue(tmp_path / "fleet", "r1")
    assert files.key.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "fleet" / "ca-key.pem").stat().st_mode & 0o777 == 0o600


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    init_fleet(tmp_path)
    files = issue(tmp_path, "r1")
    before = {p: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(UsageError, match=r"ca\.pem exists"):
        init_fleet(tmp_path)
    with pytest.raises(UsageError, match=r"r1\.pem exists"):
        issue(tmp_path, "r1")
    files.cert.unlink()
    with pytest.raises(UsageError, match=r"r1-key\.pem exists"):
        issue(tmp_path, "r1")
    assert {p: p.read_bytes() for p in tmp_path.iterdir()} == {p: b for p, b in before.items() if p != files.cert}


@pytest.mark.parametrize("name", ["", "ca", "../r1", "a/b", ".hidden", "a b", "x" * 64, "-r", "é"])
def test_what_is_not_a_name(tmp_path: Path, name: str) -> None:
    init_fleet(tmp_path)
    with pytest.raises(UsageError, match="cannot be a name"):
        issue(tmp_path, name)


def test_without_a_ca_the_message_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="chappe keys init"):
        issue(tmp_path, "r1")
    (tmp_path / "ca.pem").write_text("x")
    (tmp_path / "ca-key.pem").write_text("x")
    with pytest.raises(UsageError, match="cannot be read"):
        issue(tmp_path, "r1")


def test_an_address_that_is_none(tmp_path: Path) -> None:
    init_fleet(tmp_path)
    with pytest.raises(UsageError, match="neither"):
        issue(tmp_path, "r1", addresses=["höst"])
