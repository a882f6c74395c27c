"""A file that grows, is renamed and is truncated: every line is read once, in order."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.examples import examples
from warmpath.router.shadow import log_feed
from warmpath.router.shadow.log_feed import REST_SECONDS, GrowingFile, Line


class Rotated(RuleBasedStateMachine):
    """A writer that appends to the file that it has open, as gateways do, and a reader of the name."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.path = Path(self.folder.name) / "access.log"
        self.now = 0.0
        self.written: list[Line] = []
        self.read: list[Line] = []
        self.generation = self.names = self.begun = 0
        self.line = b""
        """The line that is not whole yet."""

    def teardown(self) -> None:
        if hasattr(self, "reader"):
            self.end_line()
            for _ in range(3):
                self.look()
            assert sorted(self.read) == sorted(self.written)
            self.reader.close()
            self.writer.close()
        self.folder.cleanup()

    @initialize(is_there=st.booleans(), old=st.sampled_from([b"", b"old\n", b"half"]))
    def begin(self, is_there: bool, old: bytes) -> None:
        if is_there:
            self.path.write_bytes(old)
        self.reader = GrowingFile(self.path, lambda: self.now)
        self.writer = self.opened()
        if is_there and old == b"half":
            self.put(b"\n")

    def opened(self) -> BinaryIO:
        return self.path.open("ab", buffering=0)

    def put(self, data: bytes) -> None:
        self.writer.write(data)

    @rule(size=st.integers(1, 40))
    def begin_line(self, size: int) -> None:
        if not self.line:
            self.names += 1
            self.line = b"%d " % self.names
            self.begun = os.fstat(self.writer.fileno()).st_size
            self.put(self.line)
        self.put(b"x" * size)
        self.line += b"x" * size

    @rule()
    def end_line(self) -> None:
        if self.line:
            self.put(b"\n")
            self.written.append(Line(self.begun, self.line))
            self.line = b""

    @rule(seconds=st.floats(0, REST_SECONDS / 2))
    def look(self, seconds: float = 0.0) -> None:
        self.now += seconds
        self.read += self.reader.read()

    @rule()
    def rename(self) -> None:
        """Rename the file, as logrotate does; the writer goes on in it until it opens the new one."""
        self.look()
        if self.path.exists():
            self.generation += 1
            self.path.rename(self.path.with_name(f"access.log.{self.generation}"))

    @precondition(lambda self: not self.line)
    @rule()
    def reopen(self) -> None:
        self.look()
        self.writer.close()
        self.writer = self.opened()

    @precondition(lambda self: not self.line)
    @rule()
    def truncate(self) -> None:
        self.look()
        self.writer.truncate(0)
        self.look()


TestRotated = Rotated.TestCase
TestRotated.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)


def test_a_renamed_file_that_rests_is_left_with_its_last_line(tmp_path: Path) -> None:
    now = 0.0
    path = tmp_path / "access.log"
    path.touch()
    reader = GrowingFile(path, lambda: now)
    with path.open("ab", buffering=0) as old:
        path.rename(tmp_path / "access.log.1")
        path.write_bytes(b"new\n")
        assert reader.read() == [(0, b"new")]
        old.write(b"late\nlast")
        assert reader.read() == [(0, b"late")]
        now += REST_SECONDS + 1
        assert reader.read() == [(5, b"last")]
        old.write(b"never\n")
        assert reader.read() == []
    reader.close()


def test_a_line_that_is_too_long_comes_cut_and_the_next_one_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_feed, "MOST_LINE_BYTES", 2000)
    path = tmp_path / "access.log"
    path.touch()
    reader = GrowingFile(path, lambda: 0.0)
    with path.open("ab", buffering=0) as writer:
        writer.write(b"y" * 3000)
        assert [len(line.content) for line in reader.read()] == [log_feed.SHOWN_BYTES]
        writer.write(b"y" * 3000 + b"\nnext\n")
        assert reader.read() == [(6001, b"next")]
    reader.close()
