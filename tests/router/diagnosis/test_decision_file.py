"""The file of the log of decisions: appended to, moved away, not writable."""

import json
import logging
from pathlib import Path
from random import Random

import pytest

from tests.router.pages.stand import pods
from tests.router.pick.weighed import choice, option, placed
from tests.router.running_router import running_router
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc
from warmpath.router.diagnosis import decisions as decision_log
from warmpath.router.diagnosis.decisions import DecisionLog, write_now


def ended() -> DecisionLog:
    log = DecisionLog(1.0, Random(1), wall_offset=lambda: 0.0)
    made = choice(option("a", 800))
    one = placed(made)
    log.picked(one, made)
    log.ended(one, "finished", 200.0)
    return log


async def test_lines_are_appended_also_after_the_file_was_moved_away(tmp_path: Path) -> None:
    file, old = tmp_path / "decisions.jsonl", tmp_path / "decisions.1"
    for _ in range(2):
        await write_now(ended(), file.name, tmp_path)
    file.rename(old)
    await write_now(ended(), file.name, tmp_path)
    await write_now(DecisionLog(1.0, Random(1), wall_offset=lambda: 0.0), file.name, tmp_path)
    assert (len(old.read_text().splitlines()), len(file.read_text().splitlines())) == (2, 1)
    assert file.stat().st_mode & 0o777 == 0o600


async def test_standard_output_gets_lines(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    await write_now(ended(), "-", tmp_path)
    assert json.loads(capfdbinary.readouterr().out)["pod"] == "a"


async def test_lines_that_cannot_be_written_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = ended()
    with caplog.at_level(logging.WARNING):
        await write_now(kept, "missing/decisions.jsonl", tmp_path)
    assert "pick.decision-log: 1 decisions are not logged: " in caplog.text
    assert "missing/decisions.jsonl: there is no such file or folder" in caplog.text
    assert kept.lost == 1


async def test_lines_without_room_are_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision_log, "MOST_LINES", 0)
    kept = ended()
    for _ in range(2):
        await write_now(kept, "decisions.jsonl", tmp_path)
    [said] = [one.getMessage() for one in caplog.records]
    assert "1 decisions are not logged: more than" in said


async def test_a_router_logs_its_decisions_and_no_prompt(tmp_path: Path) -> None:
    tables = '[pick]\ndecision-log = "decisions.jsonl"\n' + pods("pod-1")
    prompt = pb.Prompt(model="demo", text="an unmistakable word")
    async with running_router(tmp_path, tables) as (_, channel):
        stub = router_pb2_grpc.RouterStub(channel)
        picked = await stub.Pick(pb.PickRequest(prompt=prompt))
        event = pb.ReportRequest.FINISHED
        await stub.Report(pb.ReportRequest(booking_id=picked.booking_id, event=event))
    written = (tmp_path / "decisions.jsonl").read_text()
    assert json.loads(written)["booking_id"] == picked.booking_id
    assert "unmistakable" not in written
