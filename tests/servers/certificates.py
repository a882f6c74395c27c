"""Certificates for tests: an authority, and the certificates that it signs."""

import datetime as dt
import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Certificate:
    """PEM files."""

    cert: Path
    key: Path

    def replace(self, other: "Certificate") -> None:
        """Replace the files' contents by those of another certificate."""
        self.cert.write_bytes(other.cert.read_bytes())
        self.key.write_bytes(other.key.read_bytes())

    def context(self, clients_of: Path | None = None) -> ssl.SSLContext:
        """Return the TLS of a listener; its callers show a certificate of an authority, if that is given."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.cert, self.key)
        if clients_of:
            context.load_verify_locations(clients_of)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def copy(self, name: str) -> "Certificate":
        """Return a copy of the files, beside them."""
        copied = Certificate(self.cert.with_name(f"{name}.pem"), self.key.with_name(f"{name}.key"))
        copied.replace(self)
        return copied


class Authority:
    """Makes and signs certificates, all in one folder."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = (
            self._builder(self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(self._usage(signs=True), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        self.ca = folder / f"{name}.pem"
        self.ca.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def certificate(
        self,
        name: str,
        *hosts: str,
        begins: dt.datetime | None = None,
        ends: dt.datetime | None = None,
    ) -> Certificate:
        """Return a certificate for hosts, 127.0.0.1 by default: addresses, names, or URIs."""
        key = ec.generate_private_key(ec.SECP256R1())
        alternatives = [_alternative(host) for host in hosts or ("127.0.0.1",)]
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = (
            self._builder(subject, key, begins, ends)
            .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(self._usage(signs=False), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        files = Certificate(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        files.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        files.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return files

    def _builder(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        begins: dt.datetime | None = None,
        ends: dt.datetime | None = None,
    ) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begins or now - dt.timedelta(days=1))
            .not_valid_after(ends or now + dt.timedelta(days=100))
        )

    @staticmethod
    def _usage(*, signs: bool) -> x509.KeyUsage:
        return x509.KeyUsage(
            digital_signature=not signs, key_cert_sign=signs, crl_sign=signs,
            content_commitment=False, key_encipherment=False, data_encipherment=False,
            key_agreement=False, encipher_only=False, decipher_only=False,
        )  # fmt: skip


def _alternative(host: str) -> x509.GeneralName:
    if "://" in host:
        return x509.UniformResourceIdentifier(host)
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
