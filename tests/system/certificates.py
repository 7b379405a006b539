"""A certificate authority of a test's own, and what it signs."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Signed:
    """A certificate and its key, as PEM files."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates with a key that only it has; `certificate` is what others trust."""

    def __init__(self, directory: Path, name: str = "test CA") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.certificate = directory / "ca.pem"
        now = datetime.datetime.now(datetime.UTC)
        made = (
            _certificate(self._name, self._name, self._key.public_key(), now - DAY, now + 30 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))

    def sign(
        self,
        name: str,
        *addresses: str,
        days: int = 30,
        password: str = "",
    ) -> Signed:
        """For these addresses, of a server or a client. days: until it expires, negative for one that has."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.datetime.now(datetime.UTC)
        builder = _certificate(
            subject, self._name, key.public_key(), now - 10 * DAY, now + days * DAY
        ).add_extension(
            x509.ExtendedKeyUsage(
                [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
            ),
            critical=False,
        )
        if addresses:
            names = [x509.IPAddress(ipaddress.ip_address(each)) for each in addresses]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        made = builder.sign(self._key, hashes.SHA256())
        signed = Signed(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        secret: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password:
            secret = serialization.BestAvailableEncryption(password.encode())
        signed.key.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, secret)
        )
        signed.certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        return signed


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    begins: datetime.datetime,
    ends: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
    )
