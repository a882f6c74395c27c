"""URLs of Redis are taken apart, and an error names the part that is wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpath.indexer.shared.redis.address import Address, AddressError, RedisKind, parse
from warmpath.process.address import HostPort

NODES = (HostPort("a", 1), HostPort("b", 2))


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://cache:6380", Address(RedisKind.STANDALONE, tls=False, places=(HostPort("cache", 6380),))),
        ("redis://cache", Address(RedisKind.STANDALONE, tls=False, places=(HostPort("cache", 6379),))),
        ("redis://10.0.0.7:1/", Address(RedisKind.STANDALONE, tls=False, places=(HostPort("10.0.0.7", 1),))),
        ("rediss://[::1]:7", Address(RedisKind.STANDALONE, tls=True, places=(HostPort("::1", 7),))),
        ("redis-cluster://a:1,b:2", Address(RedisKind.CLUSTER, tls=False, places=NODES)),
        ("rediss-cluster://a:1,b:2", Address(RedisKind.CLUSTER, tls=True, places=NODES)),
        ("redis-sentinel://a:1,b:2/warm", Address(RedisKind.SENTINEL, tls=False, places=NODES, master="warm")),
        ("rediss-sentinel://a/m.1", Address(RedisKind.SENTINEL, tls=True, places=(HostPort("a", 26379),), master="m.1")),
    ],
)  # fmt: skip
def test_a_url_is_taken_apart(url: str, address: Address) -> None:
    assert parse(url) == address


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "it has no scheme; a URL begins with one of redis://"),
        ("cache:6379", "no scheme"),
        ("http://cache:6379", "http:// is not one of redis://"),
        ("redis://", "'' is not host:port"),
        ("redis://a:0", "port 0 of 'a:0' is not within 1 to 65535"),
        ("redis://a:65536", "port 65536"),
        ("redis://a:x", "'a:x' is not host:port"),
        ("redis://::1:6379", "in brackets"),
        ("redis://a:1,b:2", "redis:// names one server, not 2"),
        ("redis://a:1/3", "/3 is not understood; the index lies in database 0"),
        ("redis-cluster://a:1/0", "/0 is not understood"),
        ("redis-cluster://a:1,", "'' is not host:port"),
        ("redis-sentinel://a:1", "not the master's name"),
        ("redis-sentinel://a:1/x y", "not the master's name"),
        ("redis://a:1?db=3", "no options"),
        ("redis-cluster://" + ",".join(["a"] * 65), "65 hosts; 64 at most"),
    ],
)
def test_what_is_wrong_with_a_url_is_named(url: str, says: str) -> None:
    with pytest.raises(AddressError) as error:
        parse(url)
    assert says in str(error.value)


@pytest.mark.parametrize(
    "url", ["redis://:hunter2@a:1", "rediss://joe:hunter2@a", "redis-cluster://a,x:hunter2@b"]
)
def test_a_password_in_a_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(AddressError, match="password-file") as error:
        parse(url)
    assert "hunter2" not in str(error.value)


@given(st.text(max_size=60))
def test_any_text_is_a_url_or_an_address_error(rest: str) -> None:
    for scheme in ("redis://", "redis-cluster://", "redis-sentinel://", ""):
        try:
            address = parse(scheme + rest)
        except AddressError:
            continue
        assert address.places
        assert all(0 < place.port < 65536 and place.host for place in address.places)


@given(st.sampled_from(["a", "10.1.2.3", "::1", "fe80::2"]), st.integers(1, 65535))
def test_a_place_reads_as_it_is_written(host: str, port: int) -> None:
    assert parse(f"redis://{HostPort(host, port)}").places == (HostPort(host, port),)
