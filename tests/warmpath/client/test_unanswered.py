"""Why no answer came: the words for gRPC's texts."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.router.running_router import running_router
from tests.servers.certificates import Authority
from warmpath.cli.tls_options import OPTIONS
from warmpath.client.failure import ARGUMENTS, CallError, Names, tells_more, unanswered
from warmpath.client.sync_client import Client
from warmpath.process.tls import TlsPaths

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
