# SPDX-License-Identifier: Apache-2.0
"""The lab's certificate authority and its one server certificate.

The authority's private key is thrown away once it has signed: whoever reads the cache folder can
sign nothing that a lab host would trust, and no other machine trusts it at all.
"""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from .. import catalog

_DAY = datetime.timedelta(days=1)
_SIGNS = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


@dataclass(frozen=True)
class Pki:
    """Files: the authority's certificate, the server's certificate and the server's key."""

    ca: Path
    certificate: Path
    key: Path


def ensure_pki(folder: Path) -> Pki:
    """The lab's certificates in *folder*, made anew where a name is missing or the end is near."""
    pki = Pki(folder / "ca.pem", folder / "server.pem", folder / "server.key")
    if not _usable(pki):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _make(pki)
    return pki


def _names() -> list[x509.GeneralName]:
    address = x509.IPAddress(ipaddress.ip_address(catalog.ADDRESS))
    return [*(x509.DNSName(name) for name in catalog.HOSTNAMES), address]


def _usable(pki: Pki) -> bool:
    if not all(path.exists() for path in (pki.ca, pki.certificate, pki.key)):
        return False
    certificate = x509.load_pem_x509_certificate(pki.certificate.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    now = datetime.datetime.now(datetime.timezone.utc)
    return set(_names()) <= set(names) and certificate.not_valid_after_utc > now + 30 * _DAY


def _make(pki: Pki) -> None:
    now = datetime.datetime.now(datetime.timezone.utc)
    ca_key, server_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name(
        [x509.NameAttribute(NameOID.COMMON_NAME, "lemonade-deploy lab CA (simulated hosts only)")]
    )
    server_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "lemonade-deploy lab services")])

    def begin(subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(ca_name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + 3650 * _DAY)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )

    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    ca = (
        begin(ca_name, ca_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_SIGNS, critical=True)
        .sign(ca_key, hashes.SHA256())
    )
    server = (
        begin(server_name, server_key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(_names()), critical=False)
        .add_extension(issuer, critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    pki.key.touch(mode=0o600)
    pki.key.write_bytes(
        server_key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    pki.certificate.write_bytes(server.public_bytes(pem))
    pki.ca.write_bytes(ca.public_bytes(pem))
