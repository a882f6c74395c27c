"""docker-compose.yml on a real Docker engine: both images are built, both profiles come up, and requests outlive faults.

`make test-compose` runs it. Where no engine can be had, or no images for it, the tests are skipped with the reason.
"""

import json
import os
import shutil
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.conftest import commands
from tests.compose.engine import Docker, UnavailableError, engine, roomy_folder
from tests.compose.images import have_images
from tests.deploy.manifests import ROOT
from tests.deploy.test_compose import curl_of_the_page
from warmpath.client.sync_client import Client

MB = 1_000_000
MOST_MB = {"router": 350, "publisher": 200}
MOST_OWN_MB = 15
"""The layer that a changed source line replaces."""
SECONDS = 60.0
BUILD_SECONDS = 480.0
PROJECT = f"warmpath-test-{os.getpid()}"
BRIDGE = f"wp-{os.getpid()}"
UNREADY = "[[pods]]\nid = 'new'\nmodel = 'demo'\naddress = '10.77.0.99:8100'\n"


@pytest.fixture(scope="session")
def docker(request: pytest.FixtureRequest) -> Iterator[Docker]:
    """Yield the client of an engine that has both images, built of this checkout."""
    folder = roomy_folder() / PROJECT
    folder.mkdir(parents=True)
    try:
        with engine(folder, BRIDGE) as found:
            have_images(found, folder / "stand-ins")

            def build(target: str) -> None:
                words = ["--file", "deploy/Dockerfile", "--target", target]
                words += ["--tag", f"warmpath-{target}:local", "."]
                found.run("build", "--network", "host", *words, cwd=ROOT, seconds=BUILD_SECONDS)

            with ThreadPoolExecutor() as builders:
                list(builders.map(build, MOST_MB))
            yield found
    except UnavailableError as error:
        said = f"docker-compose.yml is not tried: {' '.join(str(error).split())}"
        request.config.pluginmanager.getplugin("terminalreporter").write_line(said)
        pytest.skip(said)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Running:
    """A profile that is up, by files of its own."""

    def __init__(self, docker: Docker, folder: Path, profile: str) -> None:
        self.folder = folder
        self._docker = docker
        self._words = ["--project-name", PROJECT, "--project-directory", str(folder)]
        self._profile = profile
        shutil.copytree(ROOT / "deploy", folder / "deploy")
        for name in ("docker-compose.yml", ".env"):
            shutil.copy(ROOT / name, folder)
        options = {"com.docker.network.bridge.name": BRIDGE}
        override = {"networks": {"default": {"driver_opts": options}}}
        (folder / "docker-compose.override.yml").write_text(json.dumps(override), encoding="utf-8")

    def compose(self, *words: str) -> str:
        return self._docker.compose(*self._words, "--profile", self._profile, *words)

    def docker(self, verb: str, service: str) -> None:
        self._docker.run(*verb.split(), self.container(service))

    def container(self, service: str) -> str:
        return self.compose("ps", "--all", "--quiet", service)

    def network(self, verb: str, service: str, *words: str) -> None:
        self._docker.run("network", verb, *words, f"{PROJECT}_default", self.container(service))

    def end(self) -> None:
        self._docker.compose(*self._words, "--profile", "*", "down", "--volumes", "--timeout", "5")


@contextmanager
def up(docker: Docker, folder: Path, profile: str) -> Iterator[Running]:
    running = Running(docker, folder, profile)
    try:
        running.compose("up", "--detach", "--wait")
        yield running
    finally:
        running.end()


def ask(seconds: float = 10.0) -> dict[str, str]:
    """Send the page's curl; return the answer's headers."""
    path, body = curl_of_the_page()
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:8000{path}", body, headers)
    with urllib.request.urlopen(request, timeout=seconds) as response:
        json.load(response)
        return dict(response.headers)


def until_answered_in_a_row(number: int = 20) -> None:
    """Ask until so many answers come one after the other."""
    end, row = time.monotonic() + SECONDS, 0
    while row < number:
        assert time.monotonic() < end, "requests are not answered"
        try:
            ask(3.0)
            row += 1
        except (OSError, ValueError):
            row = 0


def until_pod_is_known(name: str) -> None:
    end = time.monotonic() + SECONDS
    with Client("127.0.0.1:7400") as client:
        while name not in {pod.id for pod in client.pods("").pods}:
            assert time.monotonic() < end, f"the router does not know {name}"
            time.sleep(0.2)


@contextmanager
def requests_that_go_on() -> Iterator[list[str]]:
    """Ask without a pause meanwhile; yield the list of what broke."""
    broken: list[str] = []
    answered: list[str] = []
    stop = threading.Event()

    def go_on() -> None:
        while not stop.is_set():
            try:
                answered.append(ask(30.0)["x-warmpath-pod"])
            except (OSError, ValueError, KeyError) as error:
                broken.append(repr(error))

    threads = [threading.Thread(target=go_on) for _ in range(4)]
    for one in threads:
        one.start()
    try:
        yield broken
    finally:
        stop.set()
        for one in threads:
            one.join()
    assert answered


def test_the_images_keep_their_bounds_and_have_no_shell(docker: Docker) -> None:
    for target, most in MOST_MB.items():
        image = f"warmpath-{target}:local"
        size = int(docker.run("image", "inspect", "--format", "{{.Size}}", image))
        assert size <= most * MB, target
        layers = docker.run(
            "history", "--human=false", "--format", "{{.Size}} {{.CreatedBy}}", image
        )
        [own] = [line for line in layers.splitlines() if "/own" in line]
        assert int(own.split()[0]) <= MOST_OWN_MB * MB, own
        with pytest.raises(RuntimeError, match="sh"):
            docker.run(
                "run", "--rm", "--network", "none", "--entrypoint", "sh", image, "-c", "true"
            )


@pytest.mark.parametrize("target", MOST_MB)
def test_every_command_has_its_help_in_an_image_or_says_what_is_missing(
    docker: Docker, target: str
) -> None:
    limits = ["--rm", "--network", "none", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL"]
    image = f"warmpath-{target}:local"
    assert docker.run("run", *limits, image, "--help").startswith("usage: warmpath COMMAND")
    for name in sorted({one.name for one in commands()}):
        try:
            said = docker.run("run", *limits, image, name, "--help")
        except RuntimeError as error:
            said = str(error)
        is_lacking = target == "publisher" and "is not installed; install the extra" in said
        assert said.startswith("usage: ") or is_lacking, name
        assert "Traceback" not in said


def test_single_answers_and_sees_an_editor_s_new_file(docker: Docker, tmp_path: Path) -> None:
    with up(docker, tmp_path / "files", "single") as running:
        until_answered_in_a_row(2)
        assert int(ask()["x-warmpath-cached-tokens"]) > 0
        file = running.folder / "deploy" / "compose" / "single" / "warmpath.toml"
        written = file.with_suffix(".new")
        written.write_text(f"{file.read_text()}\n{UNREADY}", encoding="utf-8")
        written.rename(file)
        until_pod_is_known("new")


def test_fleet_answers_through_faults_and_a_roll_breaks_no_request(
    docker: Docker, tmp_path: Path
) -> None:
    with up(docker, tmp_path / "files", "fleet") as running:
        until_answered_in_a_row()
        running.docker("kill", "router-1")
        until_answered_in_a_row()
        running.docker("start", "router-1")
        running.compose("up", "--detach", "--wait")
        for pod in {ask()["x-warmpath-pod"] for _ in range(3)}:
            running.docker("pause", pod)
            until_answered_in_a_row()
            running.docker("unpause", pod)
        running.network("disconnect", "router-2")
        until_answered_in_a_row()
        running.network("connect", "router-2", "--ip", "10.77.0.22", "--alias", "routers")
        running.compose("up", "--detach", "--wait")
        until_answered_in_a_row()
        with requests_that_go_on() as broken:
            for name in ("router-1", "router-2"):
                running.compose("up", "--detach", "--no-deps", "--force-recreate", "--wait", name)
                until_answered_in_a_row()
        assert broken == []
