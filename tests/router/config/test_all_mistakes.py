"""Every mistake of a file is named at once, in the order of the file."""

import copy
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.servers.certificates import Authority
from warmpath.router.config.check import contradictions
from warmpath.router.config.form import usable
from warmpath.router.config.mistakes import Mistakes, dotted
from warmpath.router.config.read import ConfigError, load, mistakes, parse
from warmpath.router.config.schema import Config

MANY = """\
[server]
listen = "nowhere"
listn = 5
[limits]
max-prompt-bytes = -1
[pick]
policy = "unheard-of"
[[models]]
name = "m"
tokenizer = "no-folder"
[[pods]]
id = "a"
model = "m"
address = "h:0"
engine = "other"
[[pods]]
id = "b"
model = "other"
address = "h:1"
[[clients]]
name = "c"
roles = ["score", "admin", "root"]
token-file = "no-token"
[shared-index]
url = "redis://h:1"
password-file = "no-password"
"""


def described(tmp_path: Path, text: str) -> list[str]:
    file = tmp_path / "warmpath.toml"
    file.write_text(text, encoding="utf-8")
    return [one.removeprefix(f"{file}:") for one in mistakes(file).described()]


def test_mistakes_of_every_kind_are_named_together_in_the_order_of_the_file(tmp_path: Path) -> None:
    assert [one.split(": ")[:2] for one in described(tmp_path, MANY)] == [
        ["3", "server.listn"], ["5", "limits.max-prompt-bytes"], ["7", "pick.policy"],
        ["10", "models[0].tokenizer"], ["15", "pods[0].engine"], ["18", "pods[1].model"],
        ["22", "clients[0].roles[1]"], ["22", "clients[0].roles[2]"],
        ["26", "shared-index.password-file"],
    ]  # fmt: skip
    with pytest.raises(ConfigError) as raised:
        load(tmp_path / "warmpath.toml")
    assert len(raised.value.problems) == 9
    assert raised.value.brief.endswith("(and 8 more)")


def test_a_file_that_is_no_text_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "warmpath.toml"
    file.write_bytes(b"# \n# \x94\n")
    with pytest.raises(ConfigError, match=r":2: is not text in UTF-8"):
        mistakes(file)


def test_all_options_of_a_policy_are_named() -> None:
    text = '[[models]]\nname = "m"\n[pick]\noptions = { sharing = 1.5, kapa = 1.0 }\n'
    with pytest.raises(ConfigError) as raised:
        parse(text, "text")
    one, other = raised.value.problems
    assert "option sharing is 1.5" in one
    assert "no option 'kapa'" in other


def test_files_of_tls_are_each_named_with_what_is_wrong(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    one, other = authority.certificate("one"), authority.certificate("other")
    (tmp_path / "empty").write_text("")
    found = described(
        tmp_path,
        '[server.tls]\ncert = "one.pem"\nkey = "other.key"\nclient-ca = "empty"\n'
        '[watch]\nca = "none.pem"\ncert = "one.pem"\nkey = "none.key"\n'
        '[shared-index]\nurl = "rediss://h:1"\nca = "authority.pem"\ncert = "one.pem"\n'
        'key = "other.key"\n[[models]]\nname = "m"\n',
    )
    assert one.cert.is_file()
    assert other.key.is_file()
    assert [line.split(": ")[:2] for line in found] == [
        ["2", "server.tls.cert"], ["4", "server.tls.client-ca"], ["6", "watch.ca"],
        ["8", "watch.key"], ["12", "shared-index.cert"],
    ]  # fmt: skip
    assert "mismatch" in found[0].lower()


RICH = tomllib.loads("""\
pods-file = "pods.toml"
[server]
listen = "0.0.0.0:7400"
metrics-listen = "0.0.0.0:7401"
processes = 2
[server.tls]
cert = "c"
key = "k"
client-ca = "a"
[server.http2]
max-streams = 5
[limits]
max-prompt-bytes = 1_000_000
max-prompt-tokens = 100_000
max-queued-bytes = 2_000_000
[[clients]]
name = "a"
roles = ["score"]
certificate = "gateway.example"
classes = ["fast"]
[[clients]]
name = "b"
roles = ["read", "score"]
token-file = "t"
[queue]
classes = ["slow", "fast"]
usual-class = "slow"
[pick]
policy = "warmpath"
options = { kappa = 1.0 }
queue = "off"
[watch]
ca = "a"
cert = "c"
key = "k"
[probe]
cert = "c"
key = "k"
[shared-index]
url = "rediss://h:1"
user = "u"
password-file = "p"
ca = "a"
cert = "c"
key = "k"
[[models]]
name = "m"
aliases = ["x", "y"]
[models.placeholders]
image = "i"
[[models]]
name = "n"
[models.hub]
repo = "o/n"
revision = "0123456789012345678901234567890123456789"
files = { "tokenizer.json" = "0123456789012345678901234567890123456789012345678901234567890123" }
[[pods]]
id = "a"
model = "m"
address = "h:1"
events = "tcp://h:5557"
replay = "tcp://h:5567"
ranks = 2
[[pods]]
id = "b"
model = "n"
address = "h:2"
watch = "h:7500"
[[pod-sets]]
name = "s"
model = "m"
dns = "x"
[[pod-sets]]
name = "t"
model = "n"
namespace = "ns"
selector = "a=b"
""")


VALUES = st.one_of(
    st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=3),
    st.just([]), st.just({}), st.lists(st.integers(0, 3), max_size=2), st.just({"a": 1}),
)  # fmt: skip


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if not isinstance(value, dict | list):
        return []
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    return [place for key, one in inner for place in ((*at, key), *places(one, (*at, key)))]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(places(RICH)), VALUES, st.sampled_from(["put", "drop", "rename"])
        ),
        max_size=4,
    )
)
def test_a_file_has_mistakes_of_form_exactly_where_msgspec_refuses_it(
    changes: list[tuple[tuple[Any, ...], Any, str]],
) -> None:
    raw = copy.deepcopy(RICH)
    for at, value, how in changes:
        inner: Any = raw
        try:
            for key in at[:-1]:
                inner = inner[key]
            if how == "put":
                inner[at[-1]] = value
            elif how == "drop":
                del inner[at[-1]]
            else:
                inner[f"{at[-1]}x"] = inner.pop(at[-1])
        except (KeyError, IndexError, TypeError, AttributeError):
            continue
    try:
        whole = msgspec.convert(raw, Config)
    except msgspec.ValidationError:
        whole = None
    config, form = usable(raw)
    assert (whole is None) == bool(form.problems)
    assert (whole is None) == bool(form.wrong)
    if whole is not None:
        assert config == whole or config != config  # noqa: PLR0124  NaN is not equal to itself


def found(raw: dict[str, Any]) -> list[str]:
    whole = Mistakes(raw, "", "text")
    whole.add(contradictions(whole.config))
    return [one.key for one in whole.in_order()]


def test_a_file_with_everything_has_no_mistake() -> None:
    assert found(RICH) == []


@pytest.mark.parametrize("how", ["wrong", "renamed"])
@pytest.mark.parametrize("at", places(RICH), ids=dotted)
def test_one_wrong_value_is_never_more_than_its_own_mistakes(at: tuple[Any, ...], how: str) -> None:
    raw = copy.deepcopy(RICH)
    inner: Any = raw
    for key in at[:-1]:
        inner = inner[key]
    if how == "wrong":
        inner[at[-1]] = tomllib.loads("x = 2026-11-26")["x"]
    elif isinstance(inner, dict) and at[-1] != "tokenizer.json":
        inner[f"{at[-1]}x"] = inner.pop(at[-1])
    else:
        return
    own = {dotted(at), dotted(at[:-1]), f"{dotted(at)}x"}
    assert found(raw) != []
    assert {*found(raw)} <= own


def test_a_password_of_several_lines_is_a_mistake(tmp_path: Path) -> None:
    text = '[shared-index]\nurl = "redis://h:1"\npassword-file = "password"\n'
    password = tmp_path / "password"
    password.write_text("a\nb\n", encoding="utf-8")
    assert any(
        f"{password} has 2 lines; it must have one" in one for one in described(tmp_path, text)
    )
    password.write_text("a\n", encoding="utf-8")
    assert not any("password" in one for one in described(tmp_path, text))
