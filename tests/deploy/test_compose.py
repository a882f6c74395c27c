"""docker-compose.yml: docker-compose takes it, and its processes find each other as it says."""

import json
import os
import re
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from router.client.client import Client
from router.commands import check_health
from router.pb.warmpath.v1 import router_pb2 as pb
from tests.deploy.manifests import ROOT, needs_helm, printed

pytestmark = needs_helm

START_SECONDS = 60.0


def services(profile: str = "") -> dict[str, dict[str, Any]]:
    """Return what docker-compose makes of the services of a profile, and of those without one."""
    profiles = ["--profile", profile] if profile else []
    text = printed(
        "docker-compose",
        "--file",
        ROOT / "docker-compose.yml",
        *profiles,
        "config",
        "--format",
        "json",
    )
    found: dict[str, dict[str, Any]] = json.loads(text)["services"]
    return found


def test_docker_compose_takes_both_profiles() -> None:
    single, fleet = services(), services("fleet")
    assert sorted(single) == ["router", "worker-1", "worker-2"]
    assert set(single) < set(fleet)


def test_every_container_of_ours_is_restricted_and_on_loopback_only() -> None:
    for name, one in services("fleet").items():
        assert one["cap_drop"] == ["ALL"], name
        # Without capabilities root cannot become another user, as Valkey's image would at its start.
        assert one["image"].startswith("warmpath") or one["user"] == "999:999"
        assert all(port["host_ip"] == "127.0.0.1" for port in one.get("ports", ()))
        if one["image"].startswith("warmpath"):
            assert one["read_only"]
            assert one["tmpfs"] == ["/tmp"]
            assert one["image"] == f"warmpath-{one['build']['target']}:local"


class Hosts:
    """Addresses on loopback, one for each service, in place of Docker's network."""

    def __init__(self, names: list[str]) -> None:
        # Of this process's number, so that no other run of the test has them.
        number = os.getpid()
        net = f"127.{1 + number // 256 % 254}.{number % 256}"
        self._of = {name: f"{net}.{at}" for at, name in enumerate(names, 1)}

    def __getitem__(self, name: str) -> str:
        return self._of[name]

    def placed(self, text: str, own: str) -> str:
        """Return a text with addresses in place of services' names, and `own`'s where it listens."""
        text = re.sub(r"0\.0\.0\.0:|127\.0\.0\.1:", f"{self[own]}:", text)
        text = text.replace("tcp://*:", f"tcp://{self[own]}:")
        for name, address in self._of.items():
            text = re.sub(rf"(?<=[/\"]){name}:", f"{address}:", text)
        return text


def wait_until_well(url: str) -> None:
    end = time.monotonic() + START_SECONDS
    while check_health.main([url]):
        assert time.monotonic() < end, f"{url} is not well"
        time.sleep(0.1)


@pytest.mark.deep
def test_the_processes_of_the_single_profile_are_well_and_know_each_other(tmp_path: Path) -> None:
    found = services()
    hosts = Hosts(list(found))
    with ExitStack() as stack:
        for name, one in found.items():
            words = [hosts.placed(word, name) for word in one["command"]]
            for volume in one.get("volumes", ()):
                file = tmp_path / Path(volume["target"]).name
                file.write_text(hosts.placed(Path(volume["source"]).read_text(), name))
                words = [word.replace(volume["target"], str(file)) for word in words]
            log = stack.enter_context((tmp_path / f"{name}.log").open("w"))
            process = subprocess.Popen(
                [sys.executable, "-m", "router", *words], stdout=log, stderr=subprocess.STDOUT
            )
            stack.callback(process.wait, 30)
            stack.callback(process.terminate)
        words = found["router"]["healthcheck"]["test"]
        assert words == ["CMD", "warmpath", "health"]
        wait_until_well(hosts.placed(check_health.ROUTER, "router"))
        with Client(f"{hosts['router']}:7400") as client:
            pods = client.pods("").pods
    assert {pod.id: pod.ranks[0].trust.level for pod in pods} == {
        "worker-1": pb.Trust.EXACT,
        "worker-2": pb.Trust.EXACT,
    }
