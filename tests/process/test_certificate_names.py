"""The names of a client: the same whether gRPC's library or Python's `ssl` has seen the certificate."""

from warmpath.process.certificates import auth_context, names

SHOWN = {
    "subject": ((("countryName", "DE"),), (("commonName", "gateway"),)),
    "subjectAltName": (("DNS", "gateway.example"), ("URI", "spiffe://example/gateway"), ("IP Address", "10.0.0.1"), ("email", "a@example")),
}  # fmt: skip


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
