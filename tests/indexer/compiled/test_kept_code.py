"""Compiled code that is kept on disk is that of the sources as they are."""

from pathlib import Path
from types import ModuleType

import pytest

from warmpath.h2grpc.http2.library import LibraryError
from warmpath.indexer.compiled import jit


def test_another_constant_in_a_neighbour_of_what_is_compiled_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jit, "SOURCES", (tmp_path,))
    layout = tmp_path / "layout.py"
    found = set()
    for number in (1, 2):
        layout.write_text(f"WIDTH = {number}\n", encoding="utf-8")
        found.add(jit._digest())
    layout.rename(tmp_path / "other.py")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "more.py").write_text("DEPTH = 1\n", encoding="utf-8")
    found.add(jit._digest())
    assert len(found) == 3


def test_the_callbacks_of_libnghttp2_take_constants_only_from_folders_that_are_looked_at() -> None:
    try:
        from warmpath.h2grpc.http2 import callbacks
    except LibraryError as error:
        pytest.skip(str(error))
    neighbours = [
        Path(value.__file__)
        for value in (callbacks, *vars(callbacks).values())
        if isinstance(value, ModuleType)
        and value.__name__.startswith("warmpath.")
        and value.__file__
    ]
    assert len(neighbours) > 2
    for path in neighbours:
        assert any(path.is_relative_to(folder) for folder in jit.SOURCES), path
