"""Runs the processes of docker-compose.yml without containers: its commands, files, health checks and order.

Each service has an address of its own on loopback, in place of Docker's network. Whatever has no program on
this machine (Grafana) is left out.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.manifests import ROOT, printed
from tests.servers import envoy
from tests.servers.service import Service
from warmpath.cli import health as check_health
from warmpath.lab.local.redis_server import find_server

FOREIGN = {
    "envoyproxy/envoy": envoy.BINARY,
    "prom/prometheus": Path(sys.prefix) / "prometheus" / "usr" / "bin" / "prometheus",
}
"""Programs of images that are not ours, by the image's name."""
NET = "10.77.0."
START_SECONDS = 120.0


def composed(*profiles: str) -> dict[str, Any]:
    """Return what docker-compose makes of its file for some profiles, or for the one of `.env`."""
    options = [word for one in profiles for word in ("--profile", one)]
    file = ROOT / "docker-compose.yml"
    text = printed("docker-compose", "--file", file, *options, "config", "--format", "json")
    found: dict[str, Any] = json.loads(text)
    return found


def services(*profiles: str) -> dict[str, dict[str, Any]]:
    """Return the services of some profiles, and those of every profile."""
    found: dict[str, dict[str, Any]] = composed(*profiles)["services"]
    return found


def in_order(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return services' names in an order in which none comes before one on which it depends."""
    sorter = TopologicalSorter(
        {
            name: [one for one in of.get("depends_on", ()) if one in found]
            for name, of in found.items()
        }
    )
    return list(sorter.static_order())


class Compose(Service):
    """Processes of a profile. `folder` keeps their files, volumes and logs: a later start finds them again."""

    def __init__(self, folder: Path, *profiles: str) -> None:
        self._folder = folder
        self.services = services(*profiles)
        number = os.getpid()
        # Of this process's number, so that no other run of the test has them.
        self._net = f"127.{1 + number // 256 % 254}.{number % 256}."
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.left_out: list[str] = []
        programs = folder / "bin"
        if not programs.is_dir():
            programs.mkdir(parents=True)
            for name, program in (
                ("valkey-server", find_server("valkey")),
                # Valkey's own client is in no wheel.
                ("valkey-cli", find_server("redis").with_name("redis-cli")),
            ):
                (programs / name).symlink_to(program)
        self._path = f"{programs}:{os.environ['PATH']}"

    def address(self, name: str, port: int) -> str:
        """Return host:port of a service."""
        return f"{self._own(name)}:{port}"

    def _own(self, name: str) -> str:
        return self._placed(self.services[name]["networks"]["default"]["ipv4_address"])

    def _placed(self, text: str) -> str:
        return text.replace(NET, self._net)

    def words(self, name: str, words: list[str]) -> list[str]:
        """Return words of a service's command, with addresses and files of this machine."""
        return [self._text(name, word) for word in words]

    def _text(self, name: str, text: str) -> str:
        # A service that ends by itself listens nowhere, and has no address.
        if "ipv4_address" in (self.services[name]["networks"]["default"] or {}):
            text = re.sub(r"0\.0\.0\.0|127\.0\.0\.1|(?<=tcp://)\*", self._own(name), text)
        return self._placed(self._moved(name, text))

    def _moved(self, name: str, text: str) -> str:
        """Return a text with this machine's paths in place of those in a service's container."""
        places = self._volumes(name)
        if not places:
            return text
        targets = sorted(places, key=len, reverse=True)
        paths = rf"(?<![\w./])(?:{'|'.join(map(re.escape, targets))})(?![\w.])"
        return re.sub(paths, lambda one: str(places[one[0]]), text)

    def _volumes(self, name: str) -> dict[str, Path]:
        """Return where the files of a service lie, by the paths that it has in its container."""
        found = {}
        for volume in self.services[name].get("volumes", ()):
            target = volume["target"]
            if volume["type"] == "volume":
                place = self._folder / "volumes" / volume["source"]
                place.mkdir(parents=True, exist_ok=True)
            else:
                place = self._folder / "files" / name / Path(target).name
                place.parent.mkdir(parents=True, exist_ok=True)
            found[target] = place
        return found

    def _write_files(self, name: str) -> None:
        places = self._volumes(name)
        for volume in self.services[name].get("volumes", ()):
            source, place = Path(volume["source"]), places[volume["target"]]
            if volume["type"] != "bind":
                continue
            place.mkdir(exist_ok=True)
            for file in source.iterdir():
                text = self._named(file.read_text(encoding="utf-8"))
                (place / file.name).write_text(self._text(name, text), encoding="utf-8")

    def _named(self, text: str) -> str:
        """Return a file's text with addresses in place of the names that Docker would resolve."""
        if "dns_sd_configs" in text:
            config = yaml.safe_load(text)
            for job in config["scrape_configs"]:
                [asked] = job.pop("dns_sd_configs")
                found = [
                    f"{one}:{asked['port']}" for name in asked["names"] for one in self._all(name)
                ]
                job["static_configs"] = [{"targets": found}]
            return yaml.safe_dump(config)
        # Envoy would ask all of them: one stands for the name.
        for one in self._all("routers"):
            return text.replace('"routers"', f'"{one}"')
        return text

    def _all(self, alias: str) -> Iterator[str]:
        for name, one in self.services.items():
            if alias in (one["networks"]["default"] or {}).get("aliases", ()):
                yield self._own(name)

    def _program(self, name: str) -> list[str] | None:
        """Return the beginning of a service's command on this machine; None if it has no program here."""
        image = self.services[name]["image"].partition(":")[0]
        if image.startswith("warmpath-"):
            return [sys.executable, "-m", "warmpath.cli"]
        if image == "valkey/valkey":
            return []
        program = FOREIGN.get(image)
        return [str(program)] if program is not None and program.is_file() else None

    def start(self) -> None:
        """Start all services, each when those on which it depends are as it wants them; wait for health."""
        for name in in_order(self.services):
            for other, want in self.services[name].get("depends_on", {}).items():
                if other in self.services:
                    self._wait(other, want["condition"])
            self._start(name)
        for name in self._running:
            self._wait(name, "service_healthy")

    def _start(self, name: str) -> None:
        program = self._program(name)
        if program is None:
            self.left_out.append(name)
            return
        self._write_files(name)
        words = program + self.words(name, self.services[name]["command"])
        logs = self._folder / "logs"
        logs.mkdir(exist_ok=True)
        with (logs / name).open("ab") as log:
            self._running[name] = subprocess.Popen(
                words, stdout=log, stderr=log, env=os.environ | {"PATH": self._path},
                cwd=self._folder, executable=shutil.which(words[0], path=self._path),
            )  # fmt: skip

    def _wait(self, name: str, condition: str) -> None:
        end = time.monotonic() + START_SECONDS
        while not self._is(name, condition):
            log = self._folder / "logs" / name
            assert time.monotonic() < end, f"{name}, {condition}: {log.read_text()[-2000:]}"
            time.sleep(0.1)

    def _is(self, name: str, condition: str) -> bool:
        if name not in self._running:
            return name in self.left_out
        status = self._running[name].poll()
        if condition == "service_completed_successfully" or self._is_brief(name):
            assert status in {None, 0}, (self._folder / "logs" / name).read_text()
            return status == 0
        assert status is None, f"{name} ended: {(self._folder / 'logs' / name).read_text()[-2000:]}"
        check = self.services[name].get("healthcheck", {})
        if condition == "service_started" or check.get("disable"):
            return True
        kind, *words = check["test"]
        assert kind == "CMD"
        words = self.words(name, words)
        if words[:2] == ["warmpath", "health"]:
            # In this process: another one takes a second to start.
            url = words[2:] or self.words(name, [check_health.ROUTER])
            return check_health.main(url) == 0
        ended = subprocess.run(
            words, env=os.environ | {"PATH": self._path}, capture_output=True, check=False
        )
        return ended.returncode == 0

    def _is_brief(self, name: str) -> bool:
        """Return whether a service does one thing and ends."""
        return bool(self.services[name].get("restart") == "no")

    def close(self) -> None:
        """End all, the last one first, as `docker compose down` does."""
        for process in reversed(self._running.values()):
            process.terminate()
        for process in self._running.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._running.clear()
