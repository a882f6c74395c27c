"""A command overwrites no file in its output folder unless a command of warmpath wrote it; its input may be gzipped."""

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Output
from warmpath.lab.demo import demo
from warmpath.lab.fleet import command as fleet
from warmpath.lab.local.gzipped import open_gzipped
from warmpath.lab.local.out_folder import LIST, OutFolderError, claim
from warmpath.lab.simulate.command import main as simulate

COMMANDS: dict[str, tuple[Callable[[list[str]], int], list[str], str]] = {
    "demo": (demo.main, ["--out"], "results.json"),
    "simulate": (simulate, ["--traffic", "agent", "--report"], "results.jsonl"),
    "fleet": (fleet.main, ["--once", "--out"], "router-1.toml"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_refuses_to_write_over_a_file_that_it_did_not_write(
    tmp_path: Path, command: str, output: Output
) -> None:
    main, options, name = COMMANDS[command]
    (tmp_path / name).write_text("a year of notes")
    assert main([*options, str(tmp_path)]) == 2
    said = output.err()
    assert f"{tmp_path / name} is there, and no warmpath command wrote it" in said
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "a year of notes"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_that_cannot_be_made_is_a_wrong_option(
    tmp_path: Path, command: str, output: Output
) -> None:
    main, options, _ = COMMANDS[command]
    (tmp_path / "file").write_text("")
    for folder, why in (
        (tmp_path / "file", "it is a file, not a folder"),
        (tmp_path / "file" / "folder", "a part of its path is not a folder"),
        (Path("/proc/nothing"), "there is no such file or folder"),
    ):
        assert main([*options, str(folder)]) == 2
        assert f"{folder}: {why}" in output.err()


def test_what_was_written_may_be_written_again_and_by_another_command_more(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    for names in (["a"], ["a", "b"], ["b"]):
        claim(folder, names)
        for name in names:
            (folder / name).write_text("ours")
    (folder / "c").write_text("theirs")
    claim(folder, ["a", "b"])
    with pytest.raises(OutFolderError, match=r"/c is there"):
        claim(folder, ["a", "c"])


@pytest.mark.parametrize(
    "make",
    [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/null")],
    ids=["folder", "pipe", "link"],
)
@pytest.mark.parametrize("name", ["a", LIST])
def test_what_took_the_place_of_a_file_of_ours_is_not_ours(
    tmp_path: Path, name: str, make: Callable[[Path], object]
) -> None:
    claim(tmp_path, ["a"])
    (tmp_path / name).unlink(missing_ok=True)
    make(tmp_path / name)
    with pytest.raises(OutFolderError, match=name):
        claim(tmp_path, ["a"])


@pytest.mark.parametrize("content", [b"", b"a shopping list\na\n", b"\xff"])
def test_a_list_that_is_none_vouches_for_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / LIST).write_bytes(content)
    with pytest.raises(OutFolderError, match="is not a list"):
        claim(tmp_path, ["a"])


LINE = b'{"timestamp": 0, "input_length": 4, "output_length": 1, "hash_ids": [7]}\n'


@pytest.mark.parametrize("name", ["trace", "trace.gz"])
@pytest.mark.parametrize("is_gzipped", [False, True])
def test_the_name_of_a_file_says_nothing_of_its_content(
    name: str, is_gzipped: bool, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(LINE) if is_gzipped else LINE)
    with open_gzipped(path) as file:
        assert file.read() == LINE
