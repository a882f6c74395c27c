"""What tests and their scripts name of our modules exists: many run by hand alone, or beside an engine."""

import ast
import symtable
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@cache
def file_of(module: str) -> Path | None:
    """Return the file of one of our modules, for generated ones that of their types; None for others."""
    place = ROOT.joinpath(*module.split("."))
    tried = (place.with_suffix(".pyi"), place.with_suffix(".py"), place / "__init__.py")
    return next((one for one in tried if one.is_file()), None)


@cache
def names_in(file: Path) -> set[str]:
    """Return the names that a module has at its top."""
    symbols = symtable.symtable(file.read_text(encoding="utf-8"), str(file), "exec").get_symbols()
    return {
        one.get_name()
        for one in symbols
        if one.is_assigned() or one.is_annotated() or one.is_imported() or one.is_namespace()
    }


def exists(module: str, name: str) -> bool:
    file = file_of(module)
    is_ours = (ROOT / module.partition(".")[0]).is_dir()
    return not is_ours or bool(file_of(f"{module}.{name}") or (file and name in names_in(file)))


def missing(file: Path) -> Iterator[str]:
    """Yield each name of ours that a file imports, or takes from a module of ours, and that is not there."""
    nodes = [*ast.walk(ast.parse(file.read_text(encoding="utf-8")))]
    own = {one.arg for one in nodes if isinstance(one, ast.arg)}
    own |= {one.id for one in nodes if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    modules: dict[str, str] = {}
    for node in nodes:
        for alias in node.names if isinstance(node, ast.ImportFrom) and node.module else ():
            whole, name = f"{node.module}.{alias.name}", alias.asname or alias.name
            if file_of(whole) and name not in own:
                modules[name] = whole
            if not exists(str(node.module), alias.name):
                yield f"{file}:{node.lineno}: {whole}"
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = modules.get(node.value.id)
            if module and node.attr[:2] != "__" and not exists(module, node.attr):
                yield f"{file}:{node.lineno}: {module}.{node.attr}"


# `make check` runs it, too.
@pytest.mark.deep
def test_every_name_of_ours_in_a_test_or_its_scripts_exists(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text("from tests.waiting import till\nfrom warmpath.cli import serve\nserve.mane\n")
    assert [one.rpartition(": ")[2] for one in missing(wrong)] == [
        "tests.waiting.till", "warmpath.cli.serve.mane",
    ]  # fmt: skip
    assert not [one for file in sorted(ROOT.glob("tests/**/*.py")) for one in missing(file)]


def test_every_file_of_tests_has_a_name_of_its_own() -> None:
    # pytest takes two of one name for one module, unless they lie in packages.
    counts = Counter(file.name for file in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in counts.items() if count > 1] == []
