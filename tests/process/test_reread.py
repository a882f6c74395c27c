"""Files that are read again when they change, and what a bad change does."""

import asyncio
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.odd_files import ODD, become, remove
from warmpath.process.reread import MOST_BYTES, Reread, keep_current, read_bytes


def first_line(contents: Sequence[bytes]) -> str:
    if not contents[0].startswith(b"good"):
        raise ValueError("is not good")
    return contents[0].decode().strip()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_text("good one")
    return path


def test_a_file_that_is_put_in_the_place_of_another_is_taken(path: Path) -> None:
    files = Reread("it", [path], first_line)
    assert files.value == "good one"
    new = path.with_name("new")
    new.write_text("good new")
    new.rename(path)
    files.look()
    assert files.value == "good new"


def test_a_bad_change_is_logged_once_and_changes_nothing(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = Reread("it", [path], first_line)
    path.write_text("a secret that is no good")
    files.look()
    # Perhaps only half of a change is there yet.
    assert not caplog.records
    for _ in range(3):
        files.look()
    assert [one.getMessage() for one in caplog.records] == [
        "it: is not good; what was read before stays in use"
    ]
    assert files.value == "good one"
    path.unlink()
    for _ in range(3):
        files.look()
    assert len(caplog.records) == 2
    assert f"it: {path}: there is no such file" in caplog.text
    assert "secret" not in caplog.text
    path.write_text("good again")
    files.look()
    assert files.value == "good again"


def test_the_same_problem_is_logged_anew_after_a_good_time(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = Reread("it", [path], first_line)
    for _ in range(2):
        path.write_text("bad")
        for _ in range(2):
            files.look()
        path.write_text("good one")
        files.look()
    assert len(caplog.records) == 2


def test_a_file_that_changes_while_it_is_used_is_read_at_the_next_look(path: Path) -> None:
    def racing(contents: Sequence[bytes]) -> str:
        if contents[0] == b"good two":
            path.write_text("good three")
        return first_line(contents)

    files = Reread("it", [path], racing)
    path.write_text("good two")
    files.look()
    assert files.value == "good one"
    files.look()
    assert files.value == "good three"


def test_a_file_beyond_all_reason_is_refused(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(OSError, match="has more than 1048576 bytes"):
        Reread("it", [path], first_line)


@pytest.mark.parametrize("name", ODD)
def test_only_a_regular_file_is_read(
    path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    files = Reread("it", [path], first_line)
    said = become(path, name)
    with pytest.raises(OSError, match=said):
        read_bytes(path)
    for _ in range(3):
        files.look()
    assert [said in one.getMessage() for one in caplog.records] == [True]
    assert files.value == "good one"
    remove(path)
    path.write_text("good again")
    files.look()
    assert files.value == "good again"


def test_what_is_read_once_may_be_a_pipe_but_no_larger(path: Path) -> None:
    become(path, "endless")
    with pytest.raises(OSError, match="has more than"):
        read_bytes(path, of_any_kind=True)
    reading, writing = os.pipe()
    os.write(writing, b"once")
    os.close(writing)
    assert read_bytes(Path(f"/dev/fd/{reading}"), of_any_kind=True) == b"once"
    os.close(reading)


@pytest.fixture
def changed(path: Path) -> Reread[str]:
    files = Reread("it", [path], first_line)
    path.write_text("good two")
    return files


async def test_files_are_looked_at_as_long_as_the_task_runs(
    changed: Reread[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    files = changed
    task = asyncio.create_task(keep_current([files], seconds=0.001))
    while "it: read again after a change" not in caplog.text:
        await asyncio.sleep(0.001)
    assert files.value == "good two"
    task.cancel()
