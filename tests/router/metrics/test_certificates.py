"""When certificates end, as routers and publishers say it to Prometheus."""

import datetime as dt
from pathlib import Path

import pytest

from tests.servers.certificates import Authority
from warmpath.process.tls import ServerTls, TlsPaths, expiries
from warmpath.router.assemble.scraped import certificates

SOON, LATER = (dt.datetime(year, 1, 1, tzinfo=dt.UTC) for year in (2190, 2191))


def told(tls: ServerTls) -> dict[tuple[str, str], float]:
    family = certificates({"server.tls": tls})
    return {(one.labels["table"], one.labels["file"]): one.value for one in family.samples}


def test_a_renewed_certificate_is_told_at_the_next_scrape(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    first = authority.certificate("first", ends=SOON)
    second = authority.certificate("second", ends=LATER)
    tls = ServerTls("server.tls", TlsPaths(cert=first.cert, key=first.key))
    assert told(tls) == {("server.tls", "cert"): SOON.timestamp()}
    first.cert.write_bytes(second.cert.read_bytes())
    first.key.write_bytes(second.key.read_bytes())
    tls.files.look()
    assert told(tls) == {("server.tls", "cert"): LATER.timestamp()}


def test_a_chain_ends_with_its_first_certificate_and_authorities_with_their_last(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    first = authority.certificate("first", ends=SOON)
    chain = first.cert.read_bytes() + authority.certificate("second", ends=LATER).cert.read_bytes()
    (tmp_path / "chain").write_bytes(chain)
    (tmp_path / "both").write_bytes(authority.ca.read_bytes() + chain)
    paths = TlsPaths(ca=tmp_path / "both", cert=tmp_path / "chain", key=first.key)
    pem = ServerTls("server.tls", paths).pem
    assert dict(expiries(pem)) == {"ca": LATER.timestamp(), "cert": SOON.timestamp()}


def test_a_certificate_that_has_ended_is_told_when_it_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    begins, ends = (dt.datetime(2025, month, 1, tzinfo=dt.UTC) for month in (1, 2))
    ended = Authority(tmp_path).certificate("ended", begins=begins, ends=ends)
    ServerTls("server.tls", TlsPaths(cert=ended.cert, key=ended.key))
    assert f"server.tls: cert {ended.cert} has ended, on 2025-02-01: connections" in caplog.text
