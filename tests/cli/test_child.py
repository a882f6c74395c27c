"""Programs that a command starts."""

from pathlib import Path

import pytest

from warmpath.cli.child import ChildError, Process


async def test_a_program_that_ends_while_starting_is_named_with_its_last_words(
    tmp_path: Path,
) -> None:
    (log := tmp_path / "log").write_text("of an earlier start\n")
    program = Process("router", log=log)
    with pytest.raises(
        ChildError, match=r"^router ended while starting: .*no_module\W*; its log: "
    ):
        await program.start("no_module")
    await program.stop()
