"""Reads kubeconfig files, as kubectl does: the current context's cluster and user.

Source: `client-go`, `tools/clientcmd` and `plugin/pkg/client/auth/exec`. Authority's and client's
certificates, tokens, credential plugins (`exec`) and proxies are understood; what else says who asks is
refused, as the router would ask as somebody else.
"""

import base64
import binascii
import json
import os
import ssl
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from warmpath.process.command_line import in_words
from warmpath.router.pods.api_client import Access
from warmpath.router.pods.certificate import show, trusting
from warmpath.router.pods.discover import SourceError
from warmpath.router.pods.proxy import proxy_of

UNSUPPORTED = (
    "auth-provider", "username", "password", "as", "as-uid", "as-groups", "as-user-extra",
)  # fmt: skip
PLUGIN_GROUP = "client.authentication.k8s.io"
PLUGIN_VERSIONS = (f"{PLUGIN_GROUP}/v1", f"{PLUGIN_GROUP}/v1beta1")
PLUGIN_SECONDS = 30.0
CORRECT = "correct the kubeconfig, or name another one in the variable KUBECONFIG"
USE_OTHER = "use a token, tokenFile, client certificate or credential plugin (exec)"


class Part(NamedTuple):
    """A table of a kubeconfig, such as a cluster or user, and the file that has it."""

    file: Path
    place: str
    fields: Mapping[str, Any]

    def wrong(self, key: str, problem: str, advice: str = CORRECT) -> SourceError:
        return SourceError(f"{self.file}: {self.place}.{key}: {problem}", advice=advice)

    def text(self, key: str) -> str:
        """Return a field's text; empty if it is not there. Raises SourceError for another value."""
        value = self.fields.get(key)
        if not isinstance(value, str | None):
            raise self.wrong(key, "is no text")
        return value or ""

    def part(self, key: str) -> "Part":
        value = self.fields.get(key) or {}
        if not isinstance(value, dict):
            raise self.wrong(key, "is no table")
        return Part(self.file, f"{self.place}.{key}", value)

    def content(self, key: str) -> str:
        """Return what `KEY-data` has in Base64, or else the file that `KEY` names."""
        if data := self.text(f"{key}-data"):
            try:
                return base64.b64decode(data, validate=True).decode()
            except (binascii.Error, UnicodeDecodeError) as error:
                raise self.wrong(f"{key}-data", "is no text in Base64") from error
        name = self.text(key)
        try:
            return (self.file.parent / name).read_text() if name else ""
        except (OSError, UnicodeDecodeError) as error:
            problem = in_words(error) if isinstance(error, OSError) else "is no text"
            raise self.wrong(key, problem) from error


def files(environ: Mapping[str, str]) -> list[Path]:
    """Return the kubeconfig files that are there: those of KUBECONFIG, or else the user's."""
    names = environ.get("KUBECONFIG", "").split(os.pathsep)
    paths = [Path(name) for name in names if name] or [Path.home() / ".kube" / "config"]
    return [path for path in paths if path.is_file()]


def read(paths: Sequence[Path], environ: Mapping[str, str]) -> Access:
    """Return the access of the current context; of two things of one name the first counts.

    Raises SourceError with file and field for a mistake, and for what is not supported.
    """
    parts = [_load(path) for path in paths]
    current = next((one for one in parts if one.fields.get("current-context")), parts[0])
    name = current.text("current-context")
    if not name:
        raise current.wrong("current-context", "is missing")
    context = _named(parts, current, "current-context", "context")
    cluster = _named(parts, context, "cluster", "cluster")
    server = cluster.text("server").rstrip("/")
    if not server.startswith(("https://", "http://")):
        raise cluster.wrong("server", "is no URL that begins with https:// or http://")
    proxy = cluster.text("proxy-url") or proxy_of(server, environ)
    if proxy and not proxy.startswith(("https://", "http://")):
        raise cluster.wrong("proxy-url", "only proxies of http:// and https:// are supported")
    user = context._replace(place="users", fields={})
    if context.text("user"):
        user = _named(parts, context, "user", "user")
    token, certificate, key = _credentials(user, cluster, environ)
    tls = _tls(cluster, user, certificate, key) if server.startswith("https") else None
    return Access(server, token, tls, cluster.text("tls-server-name"), proxy)


def _load(path: Path) -> Part:
    import yaml  # noqa: PLC0415  an extra

    try:
        content = yaml.safe_load(path.read_bytes()) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        problem = in_words(error) if isinstance(error, OSError) else "it is no YAML"
        if (mark := getattr(error, "problem_mark", None)) is not None:
            problem = f"line {mark.line + 1} is no YAML"
        raise SourceError(f"{path}: {problem}", advice=CORRECT) from error
    if not isinstance(content, dict):
        raise SourceError(f"{path}: it is no kubeconfig", advice=CORRECT)
    return Part(path, "kubeconfig", content)


def _named(parts: Sequence[Part], by: Part, key: str, kind: str) -> Part:
    """Return the cluster, user or context that a field names."""
    name = by.text(key)
    for part in parts:
        ones = part.fields.get(f"{kind}s") or ()
        for one in ones if isinstance(ones, list) else ():
            if isinstance(one, dict) and one.get("name") == name:
                return Part(part.file, f"{kind}s[{name}]", one).part(kind)
    raise by.wrong(key, f"no {kind} is named {name!r}")


def _credentials(user: Part, cluster: Part, environ: Mapping[str, str]) -> tuple[str, str, str]:
    """Return token, certificate and key, of which any may be empty."""
    for key in UNSUPPORTED:
        if user.fields.get(key):
            raise user.wrong(key, "is not supported", USE_OTHER)
    # A file's token is renewed, and counts before the other, as client-go has it.
    token = user.content("tokenFile").strip() or user.text("token")
    certificate = user.content("client-certificate")
    if token or certificate or not user.fields.get("exec"):
        return token, certificate, user.content("client-key")
    said = _of_plugin(user.part("exec"), cluster, environ)
    names = "token", "clientCertificateData", "clientKeyData"
    token, certificate, key = (said.text(name) for name in names)
    return token, certificate, key


def _of_plugin(plugin: Part, cluster: Part, environ: Mapping[str, str]) -> Part:
    """Run a credential plugin; return the `status` of its answer.

    Each connection asks it anew, so that nothing has to be kept until it expires.
    """
    api = plugin.text("apiVersion")
    if api not in PLUGIN_VERSIONS:
        raise plugin.wrong("apiVersion", f"{api!r} is not one of {', '.join(PLUGIN_VERSIONS)}")
    if plugin.text("interactiveMode") == "Always":
        raise plugin.wrong("interactiveMode", "a router has no terminal")
    spec: dict[str, Any] = {"interactive": False}
    if plugin.fields.get("provideClusterInfo"):
        spec["cluster"] = _for_plugin(cluster)
    request = {"apiVersion": api, "kind": "ExecCredential", "spec": spec}
    command = plugin.text("command")
    if "/" in command:
        command = str(plugin.file.parent / command)
    try:
        arguments = [str(one) for one in plugin.fields.get("args") or ()]
        added = {str(one["name"]): str(one["value"]) for one in plugin.fields.get("env") or ()}
        ran = subprocess.run(  # noqa: S603  the user's kubeconfig names it
            [command, *arguments],
            env={**environ, **added, "KUBERNETES_EXEC_INFO": json.dumps(request)},
            stdin=subprocess.DEVNULL, capture_output=True, timeout=PLUGIN_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise plugin.wrong("command", f"did not end within {PLUGIN_SECONDS:g} s") from error
    except OSError as error:
        raise plugin.wrong("command", in_words(error)) from error
    except (KeyError, TypeError) as error:
        raise plugin.wrong("env", "it is no list of names and values, or args no list") from error
    if ran.returncode:
        last = ran.stderr.decode(errors="replace").strip().rpartition("\n")[2][:200]
        raise plugin.wrong("command", f"ended with status {ran.returncode}: {last}")
    try:
        answer = json.loads(ran.stdout)
        assert answer["apiVersion"] == api
        return Part(plugin.file, f"{plugin.place}.command", answer).part("status")
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        raise plugin.wrong("command", f"its answer is no ExecCredential of {api}") from error


def _for_plugin(cluster: Part) -> dict[str, Any]:
    given = {key: cluster.fields.get(key) for key in ("server", "tls-server-name", "proxy-url")}
    given["insecure-skip-tls-verify"] = cluster.fields.get("insecure-skip-tls-verify")
    authority = cluster.content("certificate-authority")
    given["certificate-authority-data"] = base64.b64encode(authority.encode()).decode()
    for one in cluster.fields.get("extensions") or ():
        if one.get("name") == f"{PLUGIN_GROUP}/exec":
            given["config"] = one.get("extension")
    return {key: value for key, value in given.items() if value}


def _tls(cluster: Part, user: Part, certificate: str, key: str) -> ssl.SSLContext:
    try:
        context = trusting(cluster.content("certificate-authority"))
    except ssl.SSLError as error:
        raise cluster.wrong("certificate-authority", "is no certificate") from error
    if cluster.fields.get("insecure-skip-tls-verify") is True:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate:
        try:
            show(context, certificate, key)
        except (ssl.SSLError, ValueError) as error:
            raise user.wrong("client-certificate", "it and its key do not make a pair") from error
    return context
