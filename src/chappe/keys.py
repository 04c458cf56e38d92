"""The fleet's CA and the certificates that it issues: `chappe keys init DIR`, `chappe keys issue NAME`.

One certificate serves a node as server and as client. Its name is the worker's name (`coordinator` for the
coordinator): peers check names, not addresses, so a host may move. Nothing is ever overwritten.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from chappe.errors import UsageError

CA_DAYS = 3650
CERTIFICATE_DAYS = 825
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_CLOCK_SKEW = dt.timedelta(hours=1)  # a rollout host whose clock is a little behind still takes a new certificate
_CA_CERT, _CA_KEY = "ca.pem", "ca-key.pem"


@dataclass(frozen=True, slots=True)
class IssuedFiles:
    """What to give to a node as --tls-cert, --tls-key and --tls-ca."""

    cert: Path
    key: Path
    ca: Path


def init_fleet(directory: Path, *, days: int = CA_DAYS) -> Path:
    """Make a new CA in `directory` (`ca.pem`, and `ca-key.pem` readable by the owner only). Returns the certificate.

    Raises UsageError when there is one already.
    """
    _make_directory(directory)
    _refuse_existing(directory / _CA_CERT, directory / _CA_KEY)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Chappe fleet CA")])
    certificate = (
        _builder(name, name, key, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(authority=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    _write_key(directory / _CA_KEY, key)
    _write_new(directory / _CA_CERT, certificate.public_bytes(Encoding.PEM), 0o644)
    return directory / _CA_CERT


def issue(directory: Path, name: str, *, addresses: Sequence[str] = (), days: int = CERTIFICATE_DAYS) -> IssuedFiles:
    """Issue `<name>.pem` and `<name>-key.pem` from the CA in `directory`. `addresses` (host names or IPs) become
    further names of the certificate, for clients that check the address they dial.

    Raises UsageError for a name that is not one, when there is no CA, or when the files exist.
    """
    if not _NAME.fullmatch(name) or name == "ca":
        raise UsageError(f"{name!r} cannot be a name: letters, digits, '.', '_' and '-', at most 63, and not 'ca'")
    ca, ca_key = _load_ca(directory)
    files = IssuedFiles(directory / f"{name}.pem", directory / f"{name}-key.pem", directory / _CA_CERT)
    _refuse_existing(files.cert, files.key)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    names = dict.fromkeys([x509.DNSName(name), *(_general_name(a) for a in addresses)])
    certificate = (
        _builder(subject, ca.subject, key, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(authority=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .add_extension(x509.SubjectAlternativeName(list(names)), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    _write_key(files.key, key)
    _write_new(files.cert, certificate.public_bytes(Encoding.PEM), 0o644)
    return files


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + dt.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        pass
    try:
        return x509.DNSName(address)
    except ValueError as error:
        raise UsageError(f"{address!r} is neither a host name nor an IP address") from error


def _load_ca(directory: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        certificate = x509.load_pem_x509_certificate((directory / _CA_CERT).read_bytes())
        key = load_pem_private_key((directory / _CA_KEY).read_bytes(), password=None)
    except OSError as error:
        raise UsageError(
            f"no fleet CA in {directory} ({error.strerror}): make one with `chappe keys init {directory}`"
        ) from error
    except (ValueError, TypeError) as error:
        raise UsageError(f"the fleet CA in {directory} cannot be read: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UsageError(f"{directory / _CA_KEY} is not the key that `chappe keys init` makes")
    return certificate, key


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{directory}: {error.strerror}") from error


def _refuse_existing(*paths: Path) -> None:
    for path in paths:
        if path.exists() or path.is_symlink():
            raise UsageError(f"{path} exists and is not overwritten: move it away first")


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    _write_new(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), 0o600)


def _write_new(path: Path, data: bytes, mode: int) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
