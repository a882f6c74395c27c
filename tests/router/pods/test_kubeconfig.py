"""Kubeconfig files: whose access counts, and the file and field of what cannot be used."""

import asyncio
import base64
import json
import os
import ssl
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.servers.api_server import NAMESPACE, ApiServer
from tests.servers.certificates import Authority
from warmpath.router.config.schema import PodSetSpec
from warmpath.router.pods import certificate, kubeconfig
from warmpath.router.pods.api_client import Access
from warmpath.router.pods.discover import SourceError
from warmpath.router.pods.kubernetes import KubernetesSource

SERVER = "https://10.96.0.1:6443"
PODS = PodSetSpec(name="k", model="m", namespace=NAMESPACE, selector="app=vllm")


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a kubeconfig with the context `x`; the fields of its cluster and user are given."""

    def written(
        user: Mapping[str, Any], cluster: Mapping[str, Any] | None = None, name: str = "config"
    ) -> Path:
        path = tmp_path / name
        content = {
            "current-context": "x",
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": SERVER, **(cluster or {})}}],
            "users": [{"name": "u", "user": user}],
        }
        path.write_text(json.dumps(content))
        return path

    return written


def read(*paths: Path, **environ: str) -> Access:
    return kubeconfig.read(paths, environ)


def coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_a_token_comes_from_its_file_before_that_of_the_user(
    write: Callable[..., Path], tmp_path: Path
) -> None:
    assert read(write({"token": "abc"})).token == "abc"
    (tmp_path / "t").write_text("renewed\n")
    assert read(write({"token": "abc", "tokenFile": "t"})).token == "renewed"


def test_of_two_files_the_first_that_names_a_thing_counts(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text(
        "users: [{name: u, user: {token: one}}]\n"
        "contexts: [{name: y, context: {cluster: c, user: u}}]\n"
    )
    second.write_text(
        "current-context: y\n"
        "users: [{name: u, user: {token: two}}]\n"
        "clusters: [{name: c, cluster: {server: 'https://a.example/k8s/c-1/'}}]\n"
    )
    names = os.pathsep.join(map(str, (tmp_path / "none", first, second)))
    paths = kubeconfig.files({"KUBECONFIG": names})
    assert paths == [first, second]
    access = read(*paths)
    assert (access.server, access.token) == ("https://a.example/k8s/c-1", "one")


def test_a_proxy_of_the_cluster_comes_before_that_of_the_environment(
    write: Callable[..., Path],
) -> None:
    at = {"HTTPS_PROXY": "http://env:1"}
    assert read(write({}), **at).proxy == "http://env:1"
    assert read(write({}), **at, NO_PROXY="10.96.0.0/12").proxy == ""
    chosen = write({}, {"proxy-url": "http://chosen:2", "tls-server-name": "api"})
    assert read(chosen, **at, NO_PROXY="*").proxy == "http://chosen:2"
    assert read(chosen).tls_name == "api"


@pytest.mark.parametrize("as_data", [True, False])
async def test_a_server_is_asked_with_a_clients_certificate_whose_key_stays_on_no_disk(
    write: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_data: bool
) -> None:
    authority = Authority(tmp_path, "kube")
    shown, client = (authority.certificate(name) for name in ("api", "client"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.ca)
    context.load_cert_chain(shown.cert, shown.key)
    context.verify_mode = ssl.CERT_REQUIRED
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    modes = []
    load = ssl.SSLContext.load_cert_chain

    def seen(self: ssl.SSLContext, certfile: str, **options: Any) -> None:
        modes.append(Path(certfile).stat().st_mode & 0o777)
        load(self, certfile, **options)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", seen)
    paths = {
        "certificate-authority": authority.ca,
        "client-certificate": client.cert,
        "client-key": client.key,
    }
    fields = {
        (f"{key}-data" if as_data else key): coded(path.read_text()) if as_data else str(path)
        for key, path in paths.items()
    }
    async with ApiServer(tls=context) as server:
        await server.put("a", "1", app="vllm")
        trusts = {key: value for key, value in fields.items() if "authority" in key}
        shows = {key: value for key, value in fields.items() if "client" in key}
        at = {"server": f"https://localhost:{server.port}", "tls-server-name": "127.0.0.1"}
        monkeypatch.setenv("KUBECONFIG", str(write(shows, trusts | at)))
        assert list(await KubernetesSource(PODS).look()) == ["a"]
        write({}, trusts | at)
        with pytest.raises(SourceError):
            await KubernetesSource(PODS).look()
        write(shows, at)
        with pytest.raises(SourceError, match="certificate is refused"):
            await KubernetesSource(PODS).look()
        write(shows, at | {"insecure-skip-tls-verify": True})
        assert list(await KubernetesSource(PODS).look()) == ["a"]
    assert set(modes) == {0o600}
    assert not list(scratch.iterdir())


async def test_a_server_is_asked_through_a_proxy_under_the_name_in_its_certificate(
    write: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path, "kube")
    asked = []
    async with ApiServer(tls=authority.certificate("api", "kubernetes").context()) as server:
        await server.put("a", "1", app="vllm")

        async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(1 << 16):
                writer.write(data)
            writer.close()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.append((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n", 1)[0])
            there, back = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            await asyncio.gather(pipe(reader, back), pipe(there, writer), return_exceptions=True)

        proxy = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with proxy:
            at = f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
            cluster = {
                "server": "https://api.invalid:6443",
                "proxy-url": at,
                "tls-server-name": "kubernetes",
                "certificate-authority": str(authority.ca),
            }
            monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
            monkeypatch.setenv("KUBECONFIG", str(write({"token": "t"}, cluster)))
            assert list(await KubernetesSource(PODS).look()) == ["a"]
    assert set(asked) == {b"CONNECT api.invalid:6443 HTTP/1.1"}


PLUGIN = """
import json, os, sys
asked = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
said = {"token": " ".join([*sys.argv[1:], os.environ["MORE"], asked["spec"]["cluster"]["server"]])}
print(json.dumps({"apiVersion": asked["apiVersion"], "kind": asked["kind"], "status": said}))
"""


@pytest.mark.parametrize("api", ["v1", "v1beta1"])
def test_a_plugin_gives_the_token(write: Callable[..., Path], tmp_path: Path, api: str) -> None:
    (tmp_path / "plugin.py").write_text(PLUGIN)
    exec_ = {
        "apiVersion": f"client.authentication.k8s.io/{api}",
        "command": sys.executable,
        "args": [str(tmp_path / "plugin.py"), "get"],
        "env": [{"name": "MORE", "value": "more"}],
        "provideClusterInfo": True,
    }
    assert read(write({"exec": exec_})).token == f"get more {SERVER}"


def plugin(*args: str, **fields: Any) -> dict[str, Any]:
    api = "client.authentication.k8s.io/v1"
    return {"exec": {"apiVersion": api, "command": sys.executable, "args": args, **fields}}


@pytest.mark.parametrize(
    ("user", "cluster", "problem"),
    [
        ({"auth-provider": {"name": "gcp"}}, {}, r"users\[u\].user.auth-provider: is not supp"),
        ({"username": "a", "password": "b"}, {}, "user.username: is not supported"),
        ({"as": "admin"}, {}, "user.as: is not supported"),
        ({"token": 5}, {}, "user.token: is no text"),
        ({"tokenFile": "none"}, {}, "user.tokenFile: .*there is no such file"),
        ({"client-certificate-data": "%"}, {}, "user.client-certificate-data: is no text in Base64"),
        ({"client-certificate-data": coded("x")}, {}, "user.client-certificate: it and its key do"),
        ({}, {"server": "10.0.0.1"}, r"clusters\[c\].cluster.server: is no URL"),
        ({}, {"proxy-url": "socks5://a"}, "cluster.proxy-url: only proxies of http"),
        ({}, {"certificate-authority-data": coded("x")}, "certificate-authority: is no certificate"),
        (plugin(apiVersion="v1alpha1"), {}, "exec.apiVersion: 'v1alpha1' is not one of"),
        (plugin(interactiveMode="Always"), {}, "exec.interactiveMode: a router has no terminal"),
        (plugin(command="./none"), {}, "exec.command: .*there is no such file"),
        (plugin(env=["x"]), {}, "exec.env: it is no list of names and values"),
        (plugin("-c", "raise SystemExit('log in first')"), {}, "ended with status 1: log in first"),
        (plugin("-c", "print('{}')"), {}, "exec.command: its answer is no ExecCredential"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_named_with_its_file_and_field(
    write: Callable[..., Path], user: dict[str, Any], cluster: dict[str, Any], problem: str
) -> None:
    path = write(user, cluster)
    with pytest.raises(SourceError, match=problem) as error:
        read(path)
    assert str(error.value).startswith(f"{path}: ")
    assert error.value.advice


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("a: [", "line 1 is no YAML"),
        ("- a", "it is no kubeconfig"),
        ("", "kubeconfig.current-context: is missing"),
        ("current-context: y", "kubeconfig.current-context: no context is named 'y'"),
    ],
)
def test_a_file_that_is_no_kubeconfig_is_named(tmp_path: Path, content: str, problem: str) -> None:
    path = tmp_path / "config"
    path.write_text(content)
    with pytest.raises(SourceError) as error:
        read(path)
    assert str(error.value) == f"{path}: {problem}"


def test_a_key_with_a_password_asks_nobody_for_it(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    shown = Authority(tmp_path, "kube").certificate("api")
    key = serialization.load_pem_private_key(shown.key.read_bytes(), None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    ).decode()
    with pytest.raises((ssl.SSLError, ValueError)):
        certificate.show(ssl.create_default_context(), shown.cert.read_text(), locked)
