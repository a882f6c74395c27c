"""Addresses as options have them, and as Envoy takes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpath.cli.gateway.bootstrap import AddressError, address_of
from warmpath.process.listen import HostPort

HOSTS = st.one_of(
    st.ip_addresses().map(str), st.from_regex(r"[a-z][a-z0-9-]{0,20}", fullmatch=True)
)


@given(HOSTS, st.integers(0, 65535))
def test_an_address_is_read_as_it_is_written(host: str, port: int) -> None:
    address = HostPort(host, port)
    assert address_of(str(address)) == address


@pytest.mark.parametrize(
    "text",
    ["", ":80", "host", "host:", "host:x", "1.2.3.4:65536", "::1:80", "[::1]", "[host]:80", "[]:1"],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(AddressError, match="is not host:port"):
        address_of(text)


@pytest.mark.parametrize(("host", "is_ip"), [("1.2.3.4", True), ("::1", True), ("pod-1", False)])
def test_a_name_is_no_ip_address(host: str, *, is_ip: bool) -> None:
    assert HostPort(host, 1).is_ip == is_ip
