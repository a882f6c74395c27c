"""The commands of the pages on other routers, HTTP and security work as they are written there."""

import json
import re
import shutil
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.docs.page_code import Reader, blocks
from tests.docs.test_pages import ROOT
from warmpath.lab.local.ports import HeldPorts

COMING = ROOT / "docs" / "guides" / "coming-from.md"
HTTP = ROOT / "docs" / "reference" / "http.md"
SECURITY = (ROOT / "docs" / "guides" / "security.md").read_text(encoding="utf-8")
PORTS = ("7400", "7401", "7500", "5557", "5558", "5567", "5568", "8080", "8101", "8102")
SERVER = """
[server]
listen = "127.0.0.1:7400"
metrics-listen = "127.0.0.1:7401"
"""
"""The defaults, which the page leaves out and the test replaces by free ports."""
SERVING = ("warmpath serve", "warmpath publish", "warmpath simworker")

pytestmark = pytest.mark.skipif(
    not (shutil.which("openssl") and shutil.which("curl")), reason="pages need openssl and curl"
)


@pytest.mark.deep
def test_every_command_of_the_page_on_other_routers_does_what_the_page_says(
    tmp_path: Path, held_ports: HeldPorts
) -> None:
    reader = Reader(tmp_path, PORTS, held_ports)
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    write, engine, router, send, llmd, dynamo = blocks(COMING, "sh")
    reader.run(write)
    config = tmp_path / "out/coming-from.toml"
    config.write_text(config.read_text() + reader.text(SERVER))
    with reader.serving(engine), reader.serving(router):
        assert '"completion_tokens":' in reader.run(send)
        while "score" not in (told := reader.run(llmd)):
            time.sleep(0.01)
        found = re.search(r"score: (\d+)", told)
        assert found
        count = int(found[1])
        assert count > 0
        assert f'pod: "{reader.text("127.0.0.1:8101")}"' in told
        query, overlap = map(json.loads, reader.run(dynamo).replace("}{", "}\n{").splitlines())
        assert query["scores"] == {"1": {"0": count * 16}}
        [worker] = overlap["workers"]
        assert worker["worker_id"] == 1
        assert worker["device_blocks"] == count


@pytest.mark.deep
def test_the_page_on_http_can_be_tried_from_its_text(tmp_path: Path, held_ports: HeldPorts) -> None:
    serve, ask = blocks(HTTP, "sh")
    reader = Reader(tmp_path, PORTS, held_ports)
    reader.copy("deploy/warmpath.toml")
    (tmp_path / "out").mkdir()
    with ExitStack() as stack:
        for command in serve.splitlines():
            stack.enter_context(reader.serving(command, speaks="envoy" not in command))
        pods = ".venv/bin/warmpath pods --router 127.0.0.1:7400"
        while reader.run(pods, may_fail=True).count("exact") < 2:
            time.sleep(0.05)
        first, second = ask.splitlines()
        anything = "curl -si 127.0.0.1:8080/v1/models"
        while "x-warmpath-pod" not in reader.run(anything, may_fail=True):
            time.sleep(0.05)
        cold = reader.run(first)
        assert "x-warmpath-cached-tokens: 0\n" in cold.replace("\r", "")
        where = re.search(r"x-warmpath-pod: (pod-[12])", cold)
        assert where
        # The engine announces the blocks soon after it has answered.
        while "x-warmpath-cached-tokens: 192" not in (warm := reader.run(second)):
            time.sleep(0.05)
            assert "200 OK" in warm
        assert where[0] in warm
        told = re.search(r"`(x-warmpath-saved-seconds: [0-9.]+)`", HTTP.read_text(encoding="utf-8"))
        assert told
        assert told[1] in warm


@pytest.mark.deep
def test_every_command_of_the_page_on_security_does_what_the_page_says(
    tmp_path: Path, held_ports: HeldPorts
) -> None:
    reader = Reader(tmp_path, PORTS, held_ports)
    parts = re.findall(r"```(sh|toml)\n(.*?)```", SECURITY, re.DOTALL)
    text, functions, log = "", "", Path()
    with ExitStack() as stack:
        for kind, block in parts:
            if kind == "toml":
                (tmp_path / "out/tls/router.toml").write_text(reader.text(block))
            elif any(name in block for name in SERVING):
                served = stack.enter_context(reader.serving(block))
                log = served if "warmpath serve" in block else log
            else:
                if "() {" in block:
                    functions = block[: block.index("\n}\n") + 3]
                elif "issue " in block:
                    block = functions + block  # noqa: PLW2901
                text += reader.run(block, errors=True)
        assert "router.toml: ok" in text
        assert "client 'gateway' lacks the role 'read', which ListPods needs" in text
        assert 'warmpath_kept_out_total{asked="ListPods",why="role"} 1.0' in text
        assert "\nok\n" in text
        while not ("server.tls: read again" in log.read_text() and "'monitor'" in log.read_text()):
            time.sleep(0.01)
        pods = next(block for _, block in parts if "warmpath pods" in block)
        while "exact" not in (shown := reader.run(pods)):
            assert "pod-1" in shown
