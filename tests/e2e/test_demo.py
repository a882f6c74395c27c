"""`warmpath demo`, small: it ends with its table, its page, and nothing left running."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest


def demo(out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "warmpath.cli", "demo", f"--out={out}", "--pods=2", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.deep
@pytest.mark.parametrize("kill", [False, True], ids=["calm", "a-pod-killed"])
def test_it_ends_with_a_table_a_page_and_figures(tmp_path: Path, kill: bool) -> None:
    options = ["--requests=60", "--span=60", "--speed=20", "--most-output=20"]
    if kill:
        options += ["--kill-pod", "--policies=warmpath,warmpath-queued", "--span=120"]
    ended = demo(tmp_path, *options)
    assert ended.returncode == 0, ended.stderr
    assert "hit ratio" in ended.stdout
    assert "report: " in ended.stdout
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 3
    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    policies = results["policies"]
    warm = policies["warmpath"]
    if kill:
        assert all(one["requests"] + one["failed"] == 60 for one in policies.values())
        # Whether a request was on its way to the pod that died is chance.
        return
    assert set(policies) == {"round-robin", "least-load", "warmpath", "warmpath, queued"}
    assert "With picks that wait in the queue, beside warmpath without: " in ended.stdout
    assert all(one["requests"] == 60 and not one["failed"] for one in policies.values())
    # On two pods and so few requests the others may find as much by chance.
    for one in (warm, policies["warmpath, queued"]):
        assert 0.75 * results["ceiling"] < one["hit_ratio"] <= results["ceiling"]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--policies=best", "--policies: best; known:"),
        pytest.param("--speed=0", "--speed: must be above 0", marks=pytest.mark.deep),
        pytest.param("--trace=/nowhere", "/nowhere", marks=pytest.mark.deep),
        pytest.param("--requests=-1", "--requests: must be 0 or more", marks=pytest.mark.deep),
    ],
)
def test_bad_options_are_named(tmp_path: Path, option: str, message: str) -> None:
    ended = demo(tmp_path, option)
    assert ended.returncode == 2
    assert message in ended.stderr


def running_with(mark: str) -> list[int]:
    """Return the processes whose environment has the mark."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue  # it has ended meanwhile
    return found


@pytest.mark.deep
@pytest.mark.parametrize(
    ("sent", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["Ctrl-C", "SIGTERM"]
)
def test_ended_early_it_stops_all_that_it_started(
    tmp_path: Path, sent: signal.Signals, status: int
) -> None:
    mark = uuid.uuid4().hex
    # As slow as time itself: it cannot be over before it is ended.
    slow = ("--policies=warmpath", "--speed=1")
    command = [sys.executable, "-m", "warmpath.cli", "demo", f"--out={tmp_path}", *slow]
    # A shell starts what it puts in the background with SIGINT ignored, and that is inherited.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    demo = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, env=os.environ | {"WARMPATH_TEST": mark}
    )
    signal.signal(signal.SIGINT, before)
    # The demo itself, four workers, and the router; it is ready to be asked once it logs.
    while len(running_with(mark)) < 6 or not (tmp_path / "router.log").read_text():
        assert demo.poll() is None
        time.sleep(0.02)
    demo.send_signal(sent)
    assert demo.wait(timeout=60) == status
    assert running_with(mark) == []


@pytest.mark.deep
def test_a_demo_whose_requests_all_fail_says_why_and_fails(tmp_path: Path) -> None:
    ended = demo(tmp_path, "--requests=5", "--blocks=5", "--policies=warmpath", "--speed=50")
    assert ended.returncode == 1
    assert "every request failed: 400" in ended.stderr
