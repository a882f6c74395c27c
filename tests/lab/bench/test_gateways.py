"""Gateways are measured before pods that cost little: by requests, and by streams read token by token."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from warmpath.lab.bench.gateways import command, load, streams
from warmpath.lab.bench.gateways.front import Front, tree
from warmpath.lab.bench.gateways.table import ALONE, BASE, OURS, Column, Measured, figures, medians
from warmpath.lab.bench.stand.servers import Python
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
        while len(found := tree(parent.pid)) < 2:
            assert parent.poll() is None
        assert parent.stdin is not None
        parent.stdin.close()
    assert found[0] == parent.pid
    assert os.getpid() not in found


def test_figures_are_medians_and_only_those_of_warmpath_have_ratios() -> None:
    columns = [Column("cost", "us", [(BASE, 0.5)]), Column("rate", "requests/s", [], least=True)]
    rounds = [
        Measured(front, {"cost": cost, "rate": 1000 / cost})
        for turn in (1, 3, 2)
        for front, cost in ((ALONE, 10.0 * turn), (OURS, 20.0 * turn), (BASE, 60.0))
    ]
    found = figures(medians(rounds), columns)
    assert [(one.name, one.value, one.ratio, one.met) for one in found if one.unit == "us"] == [
        ("Envoy alone: cost", 20.0, None, None),
        ("Envoy + warmpath: cost", 40.0, 2.0, None),
        ("Envoy + warmpath: cost", 40.0, pytest.approx(2 / 3), False),
        ("Envoy + warmpath, other checkout: cost", 60.0, None, None),
    ]


@pytest.mark.parametrize(
    "wrong", [["--fronts", "nobody"], ["--loads", "5 KB"], ["--rounds", "0"], ["--checkout", "/"]]
)
def test_wrong_options_are_named(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(wrong)
    assert f"{wrong[0]}: " in capsys.readouterr().err


@pytest.mark.deep
@pytest.mark.skipif(shutil.which("h2load") is None, reason="h2load is not installed")
def test_the_gateway_is_measured_beside_envoy_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--quick", "--json", "--loads", "4 KB,50 streams"]) == 0
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    for front in (ALONE, OURS):
        assert found[f"{front}: 4 KB: 16 clients"]["value"] > 0
        assert found[f"{front}: 50 streams: processor of Envoy a token"]["value"] > 0
    assert found[f"{OURS}: 4 KB: processor of the router a request"]["value"] > 0
