"""Certificates: their dates, and the names that gRPC's library and Python's `ssl` show alike."""

import datetime as dt

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from warmpath.process.tls import Validity, auth_context, names, validities

KEY = ec.generate_private_key(ec.SECP256R1())
MOMENTS = st.datetimes(
    dt.datetime.fromisoformat("1950-01-01"),
    dt.datetime.fromisoformat("9999-12-31"),
    timezones=st.just(dt.UTC),
).map(lambda one: one.replace(microsecond=0))
SHOWN = {
    "subject": ((("countryName", "DE"),), (("commonName", "gateway"),)),
    "subjectAltName": (("DNS", "gateway.example"), ("URI", "spiffe://example/gateway"), ("IP Address", "10.0.0.1"), ("email", "a@example")),
}  # fmt: skip


def certificate(begins: dt.datetime, ends: dt.datetime, name: str = "n") -> bytes:
    subject = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, name)])
    built = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(KEY.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
        .sign(KEY, hashes.SHA256())
    )
    return built.public_bytes(serialization.Encoding.PEM)


@given(st.lists(st.tuples(MOMENTS, MOMENTS).map(sorted), min_size=1, max_size=3))
def test_the_dates_of_every_certificate_of_a_chain_are_read(pairs: list[list[dt.datetime]]) -> None:
    pem = b"text before\n" + b"".join(certificate(*pair, name="n" * 60) for pair in pairs)
    assert validities(pem) == [Validity(*pair) for pair in pairs]


@given(st.binary(max_size=60))
def test_what_is_no_certificate_is_refused(content: bytes) -> None:
    from base64 import encodebytes

    text = encodebytes(content)
    pem = b"-----BEGIN CERTIFICATE-----\n" + text + b"-----END CERTIFICATE-----\n"
    with pytest.raises(ValueError, match=r"certificate|time data|codec|invalid"):
        validities(pem)
    assert validities(b"no certificate") == []


def test_dns_and_uri_names_and_the_common_name_name_a_client() -> None:
    found = auth_context(SHOWN)
    assert found == {
        "x509_common_name": [b"gateway"],
        "x509_subject_alternative_name": [b"gateway.example", b"spiffe://example/gateway"],
    }
    assert list(names(found)) == ["gateway.example", "spiffe://example/gateway", "gateway"]


def test_without_a_certificate_there_is_no_name() -> None:
    for shown in (None, {}):
        assert auth_context(shown) == {}
    assert list(names({"transport_security_type": [b"ssl"]})) == []
