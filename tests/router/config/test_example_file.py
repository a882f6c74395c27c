"""deploy/warmpath.toml shows keys that exist, in comments too, and says which ones it leaves out."""

import re
import tomllib
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from warmpath.lab.pages.config import sections
from warmpath.router.config.form import usable
from warmpath.router.config.read import load
from warmpath.router.config.schema import Config, PickTable

FILE = Path(__file__).parents[3] / "deploy" / "warmpath.toml"
TEXT = FILE.read_text(encoding="utf-8")
LEFT_OUT = "# Left out; docs/reference/config.md has them:\n"


def uncommented() -> dict[str, Any]:
    """Return the file's content with all tables and keys that it has in comments."""
    shown = TEXT.partition(LEFT_OUT)[0]
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
    assert TEXT.partition(LEFT_OUT)[2] == lacking()


def test_every_key_that_the_file_has_in_a_comment_exists_and_may_have_its_value() -> None:
    _, form = usable(uncommented())
    assert form.problems == []


def test_the_table_that_is_said_to_have_the_defaults_has_them() -> None:
    config, _ = usable({"models": [{"name": "m"}], "pick": uncommented()["pick"]})
    assert replace(config.pick, options={}) == PickTable()


def test_a_router_starts_with_the_file() -> None:
    assert [pod.id for pod in load(FILE).pods] == ["pod-1", "pod-2"]
