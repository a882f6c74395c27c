"""TLS whose files change: what the next connection sees, and who is let in; certificates' dates and names."""

import asyncio
import contextlib
import datetime as dt
import os
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from tests.process.tls_stand import Stand, calling, loops
from warmpath.process.grpc_tls import channel_credentials, server_credentials
from warmpath.process.reread import MOST_BYTES
from warmpath.process.tls import (
    ClientTls,
    ServerTls,
    TlsFilesError,
    TlsPaths,
    Validity,
    auth_context,
    names,
    validities,
)

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


@pytest.fixture
def stand(tmp_path: Path) -> Stand:
    return Stand(tmp_path)


@loops
async def test_a_session_of_an_authority_that_has_gone_opens_nothing(stand: Stand) -> None:
    """OpenSSL itself would let whoever has a session in for two hours."""

    async def resumed(session_file: Path, address: str, option: str) -> bool:
        caller = stand.old.certificate("resuming")
        command = (
            "openssl", "s_client", "-tls1_2", "-connect", address, "-cert", str(caller.cert),
            "-key", str(caller.key), option, str(session_file),
        )  # fmt: skip
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate(b"")
        return b"Reused, TLSv1.2" in said

    tls = stand.server()
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=tls.grpc_context)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    session_file = stand.ca.with_name("session")
    assert not await resumed(session_file, address, "-sess_out")
    assert await resumed(session_file, address, "-sess_in")
    stand.rotate()
    tls.files.look()
    assert not await resumed(session_file, address, "-sess_in")
    server.close()


async def test_old_versions_of_tls_are_refused(stand: Stand) -> None:
    tls = stand.server()
    for context in tls.files.value[1]:
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2


@contextlib.asynccontextmanager
async def grpc_server(tls: ServerTls) -> AsyncIterator[str]:
    server = grpc.aio.server()

    async def echo(requests: AsyncIterator[bytes], _: object) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request

    handlers = {"Echo": grpc.stream_stream_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("it", handlers),))
    port = server.add_secure_port("127.0.0.1:0", server_credentials(tls))
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


async def echoed(address: str, tls: ClientTls) -> bool:
    credentials = channel_credentials(tls)()
    async with grpc.aio.secure_channel(address, credentials) as channel:
        call = channel.stream_stream("/it/Echo")()
        try:
            await call.write(b"x")
            return bool(await call.read() == b"x")
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return False


async def test_grpc_takes_the_newest_files_and_drops_no_stream(stand: Stand) -> None:
    tls = stand.server()
    old = calling(stand.old, stand.old.certificate("caller"))
    new = calling(stand.new, stand.new.certificate("caller-2"))
    async with grpc_server(tls) as address:
        credentials = channel_credentials(old)()
        async with grpc.aio.secure_channel(address, credentials) as channel:
            stream = channel.stream_stream("/it/Echo")()
            await stream.write(b"1")
            assert await stream.read() == b"1"
            assert not await echoed(address, calling(stand.old))
            assert not await echoed(address, new)
            stand.rotate()
            tls.files.look()
            assert await echoed(address, new)
            assert not await echoed(address, old)
            await stream.write(b"2")
            assert await stream.read() == b"2"
            stream.cancel()


def test_a_channel_has_new_credentials_once_files_have_changed(stand: Stand) -> None:
    mine = stand.old.certificate("caller").copy("mine")
    tls = calling(stand.old, mine)
    newest = channel_credentials(tls)
    before = newest()
    tls.files.look()
    assert newest() is before
    mine.replace(stand.old.certificate("caller-2"))
    tls.files.look()
    assert newest() is not before


def test_files_that_do_not_fit_are_named_and_replace_nothing(
    stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    tls = stand.server()
    before = tls.pem
    stand.files.key.write_bytes(stand.old.certificate("other").key.read_bytes())
    for _ in range(3):
        tls.files.look()
    assert tls.pem is before
    (record,) = caplog.records
    assert (
        f"listener: {stand.files.cert} with {stand.files.key} cannot be used" in record.getMessage()
    )
    assert "PRIVATE" not in caplog.text
    with pytest.raises(TlsFilesError) as refused:
        stand.server()
    assert refused.value.part == "cert"
    for path, noun in ((stand.files.key, "private key"), (stand.files.cert, "certificate")):
        path.write_text("neither of them")
        with pytest.raises(TlsFilesError, match=f"{path} has no {noun} in PEM"):
            stand.server()
    stand.ca.write_text("no certificate")
    with pytest.raises(TlsFilesError) as refused:
        stand.server()
    assert refused.value.part == "ca"
    stand.ca.unlink()
    with pytest.raises(TlsFilesError, match="there is no file"):
        stand.server()


def test_the_file_that_is_named_is_the_one_that_was_refused(stand: Stand) -> None:
    stand.ca.write_text("no certificate")
    stand.files.cert.write_text("no certificate either")
    with pytest.raises(TlsFilesError, match=f"{stand.ca} cannot be used") as refused:
        stand.server()
    assert refused.value.part == "ca"


def test_a_certificate_may_have_its_key_in_the_same_file(stand: Stand) -> None:
    both = stand.ca.with_name("both.pem")
    both.write_bytes(stand.files.cert.read_bytes() + stand.files.key.read_bytes())
    ServerTls("listener", TlsPaths(cert=both))
    both.write_text("neither of them")
    with pytest.raises(TlsFilesError, match="has no certificate in PEM"):
        ServerTls("listener", TlsPaths(cert=both))


def test_a_private_key_is_in_no_text_about_the_files(stand: Stand) -> None:
    assert "PRIVATE" not in repr(stand.server().pem)


@pytest.mark.parametrize("part", ["ca", "cert", "key"])
@pytest.mark.parametrize(
    ("put", "problem"),
    [
        (os.mkfifo, "is a pipe, not a file"),
        (os.mkdir, "is a folder, not a file"),
        (lambda path: path.symlink_to(path), "too many levels of symbolic links"),
        (lambda path: path.symlink_to("/dev/zero"), "is a device, not a file"),
        (lambda path: path.write_bytes(b"x" * (MOST_BYTES + 1)), f"has more than {MOST_BYTES} bytes"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read_again_is_named_with_its_part(
    stand: Stand, part: str, put: Callable[[Path], object], problem: str
) -> None:
    paths = {"ca": stand.ca, "cert": stand.files.cert, "key": stand.files.key}
    paths[part].unlink()
    put(paths[part])
    with pytest.raises(TlsFilesError, match=f"^{paths[part]}: {problem}$") as refused:
        ClientTls("a client", TlsPaths(**paths))
    assert refused.value.part == part
