"""Gateways are measured before pods that cost little: by requests, and by streams read token by token."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from warmpath.cli.gateway.bootstrap import GatewayDescription
from warmpath.lab.bench.gateways import command, load, streams
from warmpath.lab.bench.gateways.front import Front
from warmpath.lab.bench.gateways.peers import installed
from warmpath.lab.bench.gateways.replay import schedule
from warmpath.lab.bench.gateways.table import ALONE, BASE, OURS, Measured, Row, figures, medians
from warmpath.lab.bench.gateways.traffic import Sent, Texts, conversations, sessions
from warmpath.lab.bench.stand.fronts import without_router
from warmpath.lab.bench.stand.servers import Python, family
from warmpath.process.address import HostPort


async def test_a_client_counts_the_tokens_of_pods_that_stream(tmp_path: Path) -> None:
    chats = tmp_path / "chats.json"
    chats.write_text(json.dumps([{"text": "hello there", "ids": [*range(40)]}]))
    with Python("warmpath.lab.bench.gateways.pods", "2", str(chats), log=tmp_path / "log") as pods:
        addresses = [HostPort.of(one["address"]) for one in json.loads(pods.hear())]
        reader, writer = await asyncio.open_connection(*addresses[1])
        for is_stream, ends in ((False, b"}}}"), (True, b"data: [DONE]\n\n\r\n0\r\n\r\n")):
            body = load.chat_of("hello", 3, stream=is_stream)
            writer.write(streams.request_of(addresses[1], body))
            answer = await reader.readuntil(ends)
            assert answer.startswith(b"HTTP/1.1 200 OK")
            assert answer.count(b'" token"') == 2 * is_stream
        # As Envoy sends bodies whose length it does not know yet.
        writer.write(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n")
        writer.write(b"0\r\n\r\n")
        assert b'"ok"' in await reader.readuntil(b"}}}")
        writer.write(
            b'POST /v1/chat/completions/render HTTP/1.1\r\ncontent-length: 13\r\n\r\n"hello there"'
        )
        assert b"38, 39]" in await reader.readuntil(b"]}")
        writer.close()
        front = Front("no front", addresses[0], None)
        found = await load.streams(front, "hello", 3, 0.2, tmp_path, opening=0.0)
    assert found.refused == 0
    assert 0 < found.p50 <= found.p99
    assert found.busy.router == 0


def test_tokens_that_come_together_have_no_time_between_them() -> None:
    window = streams.Window()
    window.take(1.0, 1.5, tokens=1)
    window.is_open = True
    window.take(1.5, 2.0, tokens=3)
    assert window.gaps == [0.5, 0.0, 0.0]


def test_a_front_is_all_processes_that_its_first_one_started() -> None:
    script = "import subprocess, sys; subprocess.run(['cat'], stdin=sys.stdin)"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE) as parent:
        while len(found := family(parent.pid)) < 2:
            assert parent.poll() is None
        assert parent.stdin is not None
        parent.stdin.close()
    assert found[0] == parent.pid
    assert os.getpid() not in found


def test_envoy_alone_is_the_same_envoy_but_for_the_router() -> None:
    address = HostPort("127.0.0.1", 7400)
    fields = without_router(GatewayDescription(address, address, [address]))
    manager = fields["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]
    filters = [one["name"].rpartition(".")[2] for one in manager["typed_config"]["http_filters"]]
    assert filters == ["header_mutation", "router"]
    assert [one["name"] for one in fields["static_resources"]["clusters"]] == ["pods"]


def test_figures_are_medians_and_goals_come_last() -> None:
    rows = [Row("cost", "us", [(BASE, 0.5), ("smg", 1)]), Row("rate", "requests/s")]
    rounds = [
        Measured(front, {"cost": cost, "rate": 1000 / cost})
        for turn in (1, 3, 2)
        for front, cost in ((ALONE, 10.0 * turn), (OURS, 20.0 * turn), (BASE, 60.0))
    ]
    found = figures(medians(rounds), rows)
    assert [(one.name, one.value, one.ratio, one.met) for one in found if one.unit == "us"] == [
        ("Envoy alone: cost", 20.0, None, None),
        ("Envoy + warmpath: cost", 40.0, None, None),
        ("Envoy + warmpath, other checkout: cost", 60.0, None, None),
        ("Envoy + warmpath: cost", 40.0, pytest.approx(2 / 3), False),
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        ["--fronts", "nobody"],
        ["--loads", "5 KB"],
        ["--rounds", "0"],
        ["--checkout", "/"],
        ["--replay-seconds", "1"],
    ],
)
def test_wrong_options_are_named(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(wrong)
    assert f"{wrong[0]}: " in capsys.readouterr().err


def test_a_table_of_other_tokens_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "PACKAGED", tmp_path / "none")
    monkeypatch.setattr(load, "check_h2load", lambda: None)
    assert command.main(["--fronts", "no front", "--loads", "4 KB", "--rounds", "1"]) != 0
    assert "make tokenizers" in capsys.readouterr().err


def words_in(folder: Path) -> Texts:
    (folder / "tokenizer.json").write_text('{"model": {"vocab": {"Ġab": 1, "Ġcd": 2, "x": 3}}}')
    return Texts(folder)


def prompt_of(one: Sent) -> str:
    text = one.body["messages"][0]["content"]
    assert isinstance(text, str)
    return text


def test_a_session_grows_turn_by_turn_and_each_turn_waits_for_the_answer(tmp_path: Path) -> None:
    sent = [*sessions(words_in(tmp_path), 60.0)]
    first, second = [prompt_of(one) for one in sent if one.session == "s0650"][:2]
    assert second.startswith(first)
    assert len(first.split()) == 276 * 64
    lines = [json.loads(line) for line in schedule(sent).splitlines()]
    begun = [line["timestamp"] for line in lines if "timestamp" in line]
    assert len(begun) == len({one.session for one in sent}) == 20
    assert begun == sorted(begun)
    assert begun[-1] < 30_000
    assert sum("delay" in line for line in lines) == len(lines) - 20 > 60


def test_a_part_of_a_trace_has_whole_conversations_at_their_times(tmp_path: Path) -> None:
    common = {"input_length": 700, "output_length": 9000}
    trace = [{"timestamp": 1000 * at, "hash_ids": [0, 1 + at % 20], **common} for at in range(64)]
    file = tmp_path / "trace.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in trace))
    sent = conversations(words_in(tmp_path), 10.0, file)
    prompts = [prompt_of(one) for one in sent]
    assert 3 <= len(sent) < 40
    assert all(prompts.count(one) >= 3 for one in prompts)
    assert all(0 <= one.at <= 10 and one.body["max_tokens"] == 100 for one in sent)


def test_an_environment_is_made_once_for_its_constraints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Sequence[str]] = []
    monkeypatch.setattr("subprocess.run", lambda words, check: calls.append(words))  # noqa: ARG005
    (tmp_path / "gateways-smg").mkdir()
    for text in ("smg==1", "smg==1", "smg==2"):
        (tmp_path / "constraints-smg.txt").write_text(text)
        assert installed("smg", tmp_path, tmp_path) == tmp_path / "gateways-smg/bin"
    assert ["--require-hashes" in words for words in calls] == [False, True] * 2


@pytest.mark.deep
@pytest.mark.skipif(shutil.which("h2load") is None, reason="h2load is not installed")
def test_the_gateway_is_measured_beside_envoy_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--quick", "--json", "--loads", "4 KB,50 streams"]) == 0
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    for front in (ALONE, OURS):
        assert found[f"{front}: 4 KB: 16 clients"]["value"] > 0
        assert found[f"{front}: 50 streams: processor of Envoy a token"]["value"] > 0
    assert found[f"{OURS}: 4 KB: processor of the router a request"]["value"] > 0
