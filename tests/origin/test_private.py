"""What must not lie on every host is not published, and everything of a model is."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_scan import put, sharded

from chappe.errors import SnapshotError
from chappe.keys import init_fleet
from chappe.origin.private import refuse_private
from chappe.origin.scan import scan

BEGIN = "-----BEGIN {}-----\nMIIB\n"


@pytest.mark.parametrize(
    "name",
    ["tls.key", "sub/origin-key.pem", "Server.KEY", "id_rsa", "deep/er/id_ed25519", "prod.env", "store.p12", "me.ppk"],
)
def test_a_name_of_a_secret_is_refused(tmp_path: Path, name: str) -> None:
    secret = put(sharded(tmp_path) / name, "nothing to see")
    with pytest.raises(SnapshotError, match=r"is not published: its name .*Move it out of the directory") as refused:
        refuse_private(scan(tmp_path))
    assert str(secret) in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        BEGIN.format("PRIVATE KEY"),
        BEGIN.format("RSA PRIVATE KEY"),
        BEGIN.format("ENCRYPTED PRIVATE KEY"),
        BEGIN.format("OPENSSH PRIVATE KEY"),
        BEGIN.format("PGP PRIVATE KEY BLOCK"),
        "\ufeff\n" + BEGIN.format("EC PARAMETERS") + BEGIN.format("EC PRIVATE KEY"),
        BEGIN.format("CERTIFICATE") * 100 + BEGIN.format("PRIVATE KEY"),
        "PuTTY-User-Key-File-3: ssh-ed25519\n",
    ],
)
def test_a_private_key_is_refused_whatever_its_name(tmp_path: Path, text: str) -> None:
    put(sharded(tmp_path) / "notes.txt", text)
    with pytest.raises(SnapshotError, match=r"notes\.txt is not published: there is a private key in it"):
        refuse_private(scan(tmp_path))


def test_a_symlink_is_judged_by_both_its_names(tmp_path: Path) -> None:
    directory = sharded(tmp_path)
    put(directory / ".env", "TOKEN=1")
    (directory / "settings.txt").symlink_to(".env")
    with pytest.raises(SnapshotError, match=r"\.env is not published"):
        refuse_private(scan(directory))


def test_the_fleets_own_keys_are_refused(tmp_path: Path) -> None:
    sharded(tmp_path)
    init_fleet(tmp_path / "keys")
    with pytest.raises(SnapshotError, match=r"keys/ca-key\.pem is not published"):
        refuse_private(scan(tmp_path))


def test_a_model_is_published_whatever_it_says_about_keys(tmp_path: Path) -> None:
    directory = sharded(tmp_path)
    put(directory / "README.md", "Paste it like this:\n" + BEGIN.format("PRIVATE KEY"))
    put(directory / "key.json", '{"key": "-----BEGIN PRIVATE KEY-----"}')
    put(directory / "ca.pem", BEGIN.format("CERTIFICATE"))
    put(directory / "keys.py", "KEY = 1")
    put(directory / "environment.yml", "name: x")
    put(directory / ".env", "TOKEN=1")  # hidden, and so not in the snapshot
    refuse_private(scan(directory))
