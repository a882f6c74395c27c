"""The proxy of a URL, by the cases of Go's `httpproxy`, which kubectl uses."""

import pytest

from warmpath.router.pods.proxy import proxy_of

PROXY = "http://proxy:3128"


@pytest.mark.parametrize(
    ("url", "no_proxy", "is_direct"),
    [
        ("https://10.96.0.1:443", "", False),
        ("https://10.96.0.1:443", "10.96.0.0/12", True),
        ("https://10.96.0.1:443", "other, 10.96.0.1/8", True),
        ("https://10.96.0.1:443", "10.96.0.1", True),
        ("https://10.96.0.1:443", "10.96.0.1:6443", False),
        ("https://10.96.0.1", "10.96.0.1:443", True),
        ("https://10.96.0.1:443", "10.97.0.0/16", False),
        ("https://[fd00::1]:6443", "fd00::/8", True),
        ("https://[fd00::1]:6443", "[fd00::1]:6443", True),
        ("https://[fd00::1]:6443", "10.0.0.0/8,fd01::/16", False),
        ("https://api.example.com", "example.com", True),
        ("https://example.com", "example.com", True),
        ("https://badexample.com", "example.com", False),
        ("https://API.example.com", "Example.COM", True),
        ("https://example.com", ".example.com", False),
        ("https://api.example.com", "*.example.com:443", True),
        ("https://api.example.com", "10.0.0.0/8", False),
        ("https://api.example.com", "*", True),
        ("https://localhost:6443", "", True),
        ("https://127.0.0.1:6443", "", True),
    ],
)
def test_a_host_that_no_proxy_names_is_asked_directly(
    url: str, no_proxy: str, is_direct: bool
) -> None:
    environ = {"HTTPS_PROXY": PROXY, "NO_PROXY": no_proxy}
    assert proxy_of(url, environ) == ("" if is_direct else PROXY)


def test_the_variables_go_by_the_scheme_of_the_url_in_either_case() -> None:
    url = "https://api.example.com"
    assert proxy_of(url, {"https_proxy": "proxy:1"}) == "http://proxy:1"
    assert proxy_of(url, {"HTTPS_PROXY": "https://a", "https_proxy": "b"}) == "https://a"
    assert not proxy_of(url, {"HTTP_PROXY": PROXY})
    assert not proxy_of(url, {"HTTPS_PROXY": PROXY, "no_proxy": "example.com"})
