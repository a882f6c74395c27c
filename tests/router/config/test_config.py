"""Configuration: what is wrong is refused with its key and line; deploy/warmpath.toml shows keys that exist."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from warmpath.cli import check_config
from warmpath.lab.pages.config import sections
from warmpath.router.config.form import find_line, key_lines, usable
from warmpath.router.config.read import ConfigError, load, parse
from warmpath.router.config.schema import Config, PickTable

BAD = sorted((Path(__file__).parents[2] / "badconfig").glob("*.toml"))
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_each_mistake_is_named_with_its_line(path: Path) -> None:
    expected = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# expect: ")
    with pytest.raises(ConfigError) as raised:
        load(path)
    assert expected in str(raised.value)
    assert str(raised.value).startswith(str(path))


def test_there_is_a_file_for_many_mistakes() -> None:
    assert len(BAD) >= 15


def test_the_example_configuration_is_valid(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_config.main([str(ROOT / "deploy" / "warmpath.toml")]) == 0
    assert "ok" in capsys.readouterr().out


def test_defaults_listen_on_loopback() -> None:
    config = parse('[[models]]\nname = "m"\n', "text")
    assert config.server.listen.startswith("127.0.0.1:")
    assert config.server.metrics_listen.startswith("127.0.0.1:")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml"):
        load(tmp_path / "nowhere.toml")


TEXT = """\
top = 1
[a]
b = 2
c.d = 3
[[list]]
x = 1
[[list]]
x = 2
inline = { y = 1 }
[list.sub]
z = 3
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("top",), 1),
        (("a",), 2),
        (("a", "b"), 3),
        (("a", "c", "d"), 4),
        (("list", 0, "x"), 6),
        (("list", 1), 7),
        (("list", 1, "x"), 8),
        (("list", 1, "inline", "y"), 9),
        (("list", 1, "sub", "z"), 11),
        (("nowhere",), 1),
    ],
)
def test_the_line_of_a_key_is_found(path: tuple[str | int, ...], line: int) -> None:
    assert find_line(key_lines(TEXT), path) == line


def test_a_file_nested_beyond_reason_is_refused() -> None:
    with pytest.raises(ConfigError, match="nested"):
        parse("x = " + "[" * 5000 + "]" * 5000, "text")


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    path = tmp_path / "bom.toml"
    path.write_bytes(b'\xef\xbb\xbf[[models]]\nname = "m"\n')
    assert load(path).models[0].name == "m"


def test_pods_of_every_engine_and_way_are_accepted() -> None:
    pods = [
        'engine = "sglang"\nevents = "tcp://h:1"\nreplay = "tcp://h:2"',
        'engine = "trtllm"\nevents = "http://h:8000/kv_cache_events"\nblock-size = 64',
        'watch = "h:7500"\nranks = 4',
        'events = "tcp://h:5557"\nranks = 2\nfirst-rank = 4',
        'events = "tcp://h:5557"\nranks = 2\nfirst-rank = 6',
        'topic = "kv@a"\nevents = "tcp://shared:1"',
        'topic = "kv@b"\nevents = "tcp://shared:1"',
    ]
    text = '[[models]]\nname = "m"\n' + "".join(
        f'[[pods]]\nid = "p{number}"\nmodel = "m"\naddress = "h:8000"\n{pod}\n'
        for number, pod in enumerate(pods)
    )
    assert len(parse(text, "text").pods) == len(pods)


def test_an_index_that_this_machine_has_no_memory_for_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "warmpath.toml"
    file.write_text('[[models]]\nname = "m"\n[index]\nmax-bytes = 64_000_000_000\n', "utf-8")
    limited = ["bash", "-c", 'ulimit -v 8000000; exec "$@"', "limited"]
    command = [*limited, sys.executable, "-m", "warmpath.cli", "check-config", str(file)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert f"{file}:4: index.max-bytes: is 64000000000, more than this machine has" in found.stderr


def test_a_condition_of_readiness_that_nobody_knows_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError) as refused:
        parse('[server]\nready = ["pods", "heat"]\n[[models]]\nname = "m"\n', "router.toml")
    assert str(refused.value) == (
        "router.toml:2: server.ready[1]: is 'heat', must be one of pods, index, coverage, tokenizers"
    )


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('[server]\nlisten = "127.0.0.1', 2),
        ("[server]\nlisten =", 2),
        ('[[models]]\nname = "m"\naliases = ["a",\n', 3),
        ("[[models]]\nna", 2),
        ("[[models]\n", 1),
    ],
)
def test_a_file_that_is_cut_off_is_named_with_its_last_line(text: str, line: int) -> None:
    with pytest.raises(ConfigError, match=rf"^router.toml:{line}: "):
        parse(text, "router.toml")


FILE = Path(__file__).parents[3] / "deploy" / "warmpath.toml"
EXAMPLE = FILE.read_text(encoding="utf-8")
LEFT_OUT = "# Left out; docs/reference/config.md has them:\n"


def uncommented() -> dict[str, Any]:
    """Return the file's content with all tables and keys that it has in comments."""
    shown = EXAMPLE.partition(LEFT_OUT)[0]
    return tomllib.loads(re.sub(r'^# (?=\[|[a-z-]+ = |")', "", shown, flags=re.MULTILINE))


def names(table: tuple[str, ...], content: Any) -> set[str]:
    """Return the keys that a table, or any of an array of tables, has in the file."""
    for name in table:
        content = [one[name] for one in listed(content) if name in one]
        content = [inner for one in content for inner in listed(one)]
    return {key for one in listed(content) for key in one}


def listed(content: Any) -> list[Any]:
    return content if isinstance(content, list) else [content]


def lacking() -> str:
    """Return what the file leaves out: whole tables, and keys of tables that it has."""
    content = uncommented()
    tables = {one.path for one in sections()}
    lines = []
    for path, table in [((), Config), *((one.path, one.table) for one in sections())]:
        found = names(path, content)
        own = [key for key in table.__struct_encode_fields__ if (*path, key) not in tables]
        keys = [key for key in own if key not in found]
        if keys:
            heading = f"[{'.'.join(path)}]" if path else "before all tables:"
            whole = keys == own and path
            lines.append(f"# - {heading}{'' if whole else ' ' + ', '.join(keys)}\n")
    return "".join(lines)


def test_the_file_says_what_it_leaves_out() -> None:
    assert EXAMPLE.partition(LEFT_OUT)[2] == lacking()


def test_every_key_that_the_file_has_in_a_comment_exists_and_may_have_its_value() -> None:
    _, form = usable(uncommented())
    assert form.problems == []


def test_the_table_that_is_said_to_have_the_defaults_has_them() -> None:
    config, _ = usable({"models": [{"name": "m"}], "pick": uncommented()["pick"]})
    assert replace(config.pick, options={}) == PickTable()


def test_a_router_starts_with_the_file() -> None:
    assert [pod.id for pod in load(FILE).pods] == ["pod-1", "pod-2"]
