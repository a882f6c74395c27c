"""The error of a call: the details of a status and its trailing metadata, and why no answer came."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.router.running_router import running_router
from tests.servers.certificates import Authority
from warmpath.cli.tls_options import OPTIONS
from warmpath.client.failure import CallError, failure_of
from warmpath.client.sync_client import Client
from warmpath.client.unanswered import ARGUMENTS, Names, tells_more, unanswered
from warmpath.process.tls import TlsPaths
from warmpath.proto.pb.warmpath.wire.v1 import status_details_pb2 as wire


def told(*trailing: tuple[str, str | bytes]) -> CallError:
    metadata = grpc.aio.Metadata(*trailing)
    code = grpc.StatusCode.UNAVAILABLE
    return failure_of(grpc.aio.AioRpcError(code, grpc.aio.Metadata(), metadata, details="text"))


def details(*of: tuple[str, bytes]) -> bytes:
    made = [wire.Detail(type_url=kind, value=value) for kind, value in of]
    return wire.Status(code=14, details=made).SerializeToString()


INFO = wire.ErrorInfo(reason="TOKENIZER_UNAVAILABLE", metadata={"model": "m"}).SerializeToString()


def test_the_reason_is_that_of_the_error_info_among_the_details() -> None:
    other = "type.googleapis.com/google.rpc.RetryInfo", b"\x0a\x00"
    info = "type.googleapis.com/google.rpc.ErrorInfo", INFO
    assert told(("grpc-status-details-bin", details(other, info))).reason == "TOKENIZER_UNAVAILABLE"
    assert told(("grpc-status-details-bin", details(other))).reason is None
    assert told(("grpc-status-details-bin", details((info[0], b"")))).reason is None
    assert told().reason is None


def test_a_retry_has_a_chance_when_the_details_or_the_pushback_say() -> None:
    kind = "type.googleapis.com/google.rpc.RetryInfo"
    delay = wire.Duration(seconds=1, nanos=500_000_000)
    info = details((kind, wire.RetryInfo(retry_delay=delay).SerializeToString()))
    assert told(("grpc-status-details-bin", info)).retry_after == 1.5
    both = ("grpc-status-details-bin", info), ("grpc-retry-pushback-ms", "20")
    assert told(*both).retry_after == 0.02
    negative = wire.RetryInfo(retry_delay=wire.Duration(seconds=-5)).SerializeToString()
    assert told(("grpc-status-details-bin", details((kind, negative)))).retry_after == 0.0
    at_once = details((kind, wire.RetryInfo().SerializeToString()))
    assert told(("grpc-status-details-bin", at_once)).retry_after == 0.0


def test_the_details_are_the_bytes_of_googles_own_messages() -> None:
    # Written by googleapis-common-protos 1.76.0: Status(code=8, message="m", details=[Any of
    # ErrorInfo(reason="OVERLOADED", domain="d", metadata={"a": "b"})]).
    golden = bytes.fromhex(
        "080812016d1a430a28747970652e676f6f676c65617069732e636f6d2f676f6f"
        "676c652e7270632e4572726f72496e666f12170a0a4f5645524c4f4144454412"
        "01641a060a0161120162"
    )
    assert told(("grpc-status-details-bin", golden)).reason == "OVERLOADED"


@given(st.binary(max_size=80))
def test_details_that_nobody_can_read_hide_no_error(raw: bytes) -> None:
    failure = told(("grpc-status-details-bin", raw))
    assert (failure.code, failure.message) == (grpc.StatusCode.UNAVAILABLE, "text")


@pytest.mark.parametrize(
    ("pushback", "retry_after", "may_repeat"),
    [("0", 0.0, True), ("1500", 1.5, True), ("-1", None, False), ("soon", None, False)],
)
def test_the_router_says_when_to_try_again_or_never(
    pushback: str, retry_after: float | None, *, may_repeat: bool
) -> None:
    failure = told(("grpc-retry-pushback-ms", pushback))
    assert (failure.retry_after, failure.may_repeat) == (retry_after, may_repeat)


REFUSED = (
    "failed to connect to all addresses; last error: UNKNOWN: {at}: Failed to connect to remote "
    "host: Connection refused"
)


def said(
    message: str, *, tls: bool = False, cert: bool = False, asked: str = "localhost:1",
    names: Names = OPTIONS,
) -> str:  # fmt: skip
    return unanswered("UNAVAILABLE", message, names, asked=asked, has_tls=tls, has_cert=cert)


OTHER_HOST = (
    "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Custom verification check failed "
    "with error: UNAUTHENTICATED: Hostname Verification Check failed."
)


@pytest.mark.parametrize(
    ("message", "options", "begins"),
    [
        # Of a name with several addresses it says which one failed.
        (REFUSED.format(at="ipv6:%5B::1%5D:1"), {}, "nothing listens at [::1]:1, an address of that name; start one"),
        (REFUSED.format(at="ipv4:127.0.0.1:1"), {"asked": "127.0.0.1:1"}, "nothing listens there; start one"),
        # A closed connection may want what was not shown.
        ("Socket closed", {}, "it closed the connection: it wants TLS (--tls-ca), has as"),
        ("Socket closed", {"tls": True}, "it closed the connection: it wants a certificate (--tls-cert, --tls-key), has as"),
        ("Socket closed", {"tls": True, "cert": True}, "it closed the connection: it wants another certificate (--tls-cert, --tls-key), has as"),
        # One that breaks during a call lacks neither.
        ("Stream removed (Socket closed)", {}, "the connection broke during the call: the router ended"),
        # A certificate for another host is no router that is not there.
        (OTHER_HOST, {"tls": True}, "one refuses the other's certificate; check"),
    ],
)  # fmt: skip
def test_the_words_begin_with_the_cause(message: str, options: dict[str, Any], begins: str) -> None:
    assert said(message, **options).startswith(begins)


def test_the_library_names_its_arguments() -> None:
    words = said("Socket closed", names=ARGUMENTS)
    assert words.startswith("it closed the connection: it wants TLS (tls=TlsPaths(…)), has as")
    words = said("Socket closed", tls=True, names=ARGUMENTS)
    assert words.startswith("it closed the connection: it wants a certificate (tls.cert, tls.key)")
    for message in (
        "Connection refused",
        "WRONG_VERSION_NUMBER",
        "Ssl handshake failed",
        "unknown_ca",
    ):
        assert "--tls" not in said(message, names=ARGUMENTS)
        assert "--router" not in said(message, names=ARGUMENTS)


def test_a_connection_that_is_closed_in_the_handshake_is_no_reason_to_leave_tls_out() -> None:
    words = said("Handshake read failed (recvmsg:Connection reset by peer (104))", tls=True)
    assert "server.http2.max-connections" in words
    assert "leave" not in words


CLOSED = (
    "failed to connect to all addresses; last error: UNAVAILABLE: ipv4:127.0.0.1:1: Socket closed"
)


def test_what_one_address_said_is_not_hidden_by_another_at_which_nothing_listens() -> None:
    refused = REFUSED.format(at="ipv6:%5B::1%5D:1")
    assert tells_more(CLOSED, refused)
    assert not tells_more(refused, CLOSED)
    assert not tells_more(refused, refused)
    # The router has ended meanwhile.
    assert not tells_more(CLOSED, REFUSED.format(at="ipv4:127.0.0.1:1"))
    assert "; if it listens at another address of that name, ask that one" in said(refused)


async def test_a_router_that_wants_a_certificate_says_so_at_each_of_a_names_addresses(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    its = authority.certificate("server")
    tables = (
        f'[server.tls]\ncert = "{its.cert}"\nkey = "{its.key}"\nclient-ca = "{authority.ca}"\n'
        '[[models]]\nname = "m"\n'
    )
    async with running_router(tmp_path, tables) as (router, _):
        port = router.address.rpartition(":")[2]
        target = f"ipv6:[::1]:{port},[::ffff:127.0.0.1]:{port}"

        def asked() -> str:
            tls = TlsPaths(authority.ca)
            with Client(target, tls=tls, timeout=60) as client, pytest.raises(CallError) as raised:
                client.pods()
            return raised.value.hint

        for _ in range(10):
            assert "nothing listens" not in await asyncio.to_thread(asked)
