"""docker-compose.yml: docker-compose takes it, and its processes find each other as it says."""

import json
import re
import subprocess
import sys
import time
import tomllib
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.compose_processes import NET, Compose, composed, in_order, services
from tests.deploy.manifests import DEPLOY, ROOT, needs_helm
from warmpath.client.sync_client import Client
from warmpath.lab.local.tokenizer import write_tokenizer
from warmpath.lab.simworker.options import parse as simworker_options
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.publisher.main import main as publish_main
from warmpath.router.config.read import load

pytestmark = needs_helm

PROFILES = ("single", "fleet")
WORKERS = {f"worker-{number}" for number in range(1, 5)}
SECONDS = 60.0


def config_of(profile: str) -> Path:
    return DEPLOY / "compose" / profile / "warmpath.toml"


def test_docker_compose_up_takes_the_single_profile() -> None:
    assert services() == services("single")


def test_each_profile_has_its_routers_and_both_have_the_rest() -> None:
    single, fleet = set(services("single")), set(services("fleet"))
    assert single & fleet == WORKERS | {"envoy", "prometheus", "grafana"}
    assert single - fleet == {"router"}
    publishers = {f"publisher-{number}" for number in range(1, 5)}
    redis = {"redis-1", "redis-2", "redis-3", "redis-cluster"}
    assert fleet - single == {"router-1", "router-2"} | publishers | redis


@pytest.mark.parametrize("profile", PROFILES)
def test_every_container_is_restricted_and_on_loopback_only(profile: str) -> None:
    for name, one in services(profile).items():
        assert one["cap_drop"] == ["ALL"], name
        assert one["security_opt"] == ["no-new-privileges:true"]
        assert int(one["mem_limit"]) <= 1 << 30
        assert one["pids_limit"] == 256
        assert one["logging"]["options"]["max-size"] == "10m"
        assert all(port["host_ip"] == "127.0.0.1" for port in one.get("ports", ()))
        if one["image"].startswith("warmpath"):
            assert one["read_only"]
            assert one["tmpfs"] == ["/tmp:size=64m"]
            assert one["pull_policy"] == "never"
        else:
            # Without capabilities root cannot become another user, as some images would at their start.
            assert re.match(r"[1-9][0-9]*:", one["user"]), name
            assert re.search(r":v?\d+\.\d+\.\d+$", one["image"]), "a version that stays what it is"


def test_each_image_is_built_by_one_service() -> None:
    found = services("*")
    built = [(one["image"], one["build"]["target"]) for one in found.values() if "build" in one]
    assert sorted(built) == [
        ("warmpath-publisher:local", "publisher"), ("warmpath-router:local", "router"),
    ]  # fmt: skip


@pytest.mark.parametrize("profile", PROFILES)
def test_no_two_services_have_an_address_or_a_port_of_the_host(profile: str) -> None:
    found = services(profile).values()
    nets = [one["networks"]["default"] or {} for one in found]
    addresses = [net["ipv4_address"] for net in nets if "ipv4_address" in net]
    assert len(set(addresses)) == len(addresses)
    [config] = composed(profile)["networks"]["default"]["ipam"]["config"]
    # Docker gives the others addresses of the upper half.
    assert config == {"subnet": f"{NET}0/24", "ip_range": f"{NET}128/25"}
    assert all(int(one.removeprefix(NET)) < 128 for one in addresses)
    ports = [port["published"] for one in found for port in one.get("ports", ())]
    assert len(set(ports)) == len(ports)


@pytest.mark.parametrize("profile", PROFILES)
def test_a_router_s_file_names_the_workers_of_the_profile(profile: str) -> None:
    found = services(profile)
    config = load(config_of(profile))
    for pod in config.pods:
        own = found[pod.id]["networks"]["default"]["ipv4_address"]
        assert pod.address == f"{own}:8100"
        assert not pod.watch
        assert bool(pod.events) == (profile == "single")
        if pod.events:
            assert (pod.events, pod.replay) == (f"tcp://{own}:5557", f"tcp://{own}:5558")
    assert {pod.id for pod in config.pods} == WORKERS


def test_publishers_write_where_routers_read(capsys: pytest.CaptureFixture[str]) -> None:
    found = services("fleet")
    url = load(config_of("fleet")).shared_index.url
    nodes = [found[f"redis-{number}"]["networks"]["default"] for number in (1, 2, 3)]
    assert url == "redis-cluster://" + ",".join(f"{one['ipv4_address']}:6379" for one in nodes)
    for number in range(1, 5):
        one = found[f"publisher-{number}"]
        own = one["networks"]["default"]["ipv4_address"]
        engine = found[f"worker-{number}"]["networks"]["default"]["ipv4_address"]
        words = one["command"]
        assert words[0] == "publish"
        for word in (
            f"--redis={url}",
            f"--pod=worker-{number}",
            f"--events=tcp://{engine}:5557",
            f"--replay=tcp://{engine}:5558",
            f"--advertise={own}:7500",
        ):
            assert word in words
        # A last option that is refused, after all the others were taken.
        with pytest.raises(SystemExit):
            publish_main([*words[1:], "--redis-lease-seconds=0"])
        assert "--redis-lease-seconds" in capsys.readouterr().err


def test_the_workers_options_are_known() -> None:
    for name in WORKERS:
        words = services()[name]["command"]
        assert words[0] == "simworker"
        assert simworker_options(words[1:]).host == "0.0.0.0"


def test_envoy_s_file_is_what_the_command_prints() -> None:
    found = services("fleet")
    pods = [
        f"{found[name]['networks']['default']['ipv4_address']}:8100" for name in sorted(WORKERS)
    ]
    words = ["--router=routers:7400", *(f"--pod={one}" for one in pods), "--listen=0.0.0.0:8000"]
    words += ["--insecure", "--print-config"]
    command = [sys.executable, "-m", "warmpath.cli", "gateway", *words]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    file = DEPLOY / "compose" / "envoy" / "envoy.json"
    assert json.loads(file.read_text()) == json.loads(printed.stdout), (
        "docs/guides/compose-and-images.md prints it"
    )
    for name in ("router", "router-1", "router-2"):
        of = {**services("single"), **found}[name]["networks"]["default"]
        assert of["aliases"] == ["routers"]


def test_the_tokenizer_is_the_made_up_one(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    made = {file.name: file.read_text() for file in tmp_path.iterdir()}
    there = (DEPLOY / "compose" / "tokenizer").iterdir()
    assert {file.name: file.read_text() for file in there} == made


@pytest.mark.parametrize("profile", PROFILES)
def test_every_mount_is_a_folder_in_which_a_new_file_is_seen(profile: str) -> None:
    for name, one in services(profile).items():
        for volume in one.get("volumes", ()):
            if volume["type"] == "bind":
                assert Path(volume["source"]).is_dir(), (name, volume)
                assert volume["read_only"]


def test_grafana_s_files_name_each_other() -> None:
    grafana = services()["grafana"]
    folders = {one["target"]: Path(one["source"]) for one in grafana["volumes"]}
    folder = DEPLOY / "compose" / "grafana"
    [provider] = yaml.safe_load((folder / "dashboards" / "warmpath.yaml").read_text())["providers"]
    shown = provider["options"]["path"]
    home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{shown}/dashboard.json"
    assert (folders[shown] / "dashboard.json").is_file()
    [source] = yaml.safe_load((folder / "datasources" / "warmpath.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"


def test_prometheus_reads_routers_and_publishers_by_the_jobs_of_the_rules() -> None:
    config = yaml.safe_load((DEPLOY / "compose" / "prometheus" / "prometheus.yml").read_text())
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    assert set(jobs) == {"warmpath", "warmpath-publisher"}
    assert all(job["honor_labels"] for job in jobs.values())
    server = tomllib.loads(config_of("fleet").read_text())["server"]
    [routers] = jobs["warmpath"]["dns_sd_configs"]
    assert server["metrics-listen"].endswith(f":{routers['port']}")
    [publishers] = jobs["warmpath-publisher"]["dns_sd_configs"]
    command = services("fleet")["publisher-1"]["command"]
    assert f"--metrics-listen=0.0.0.0:{publishers['port']}" in command


def test_a_service_starts_after_those_on_which_it_depends() -> None:
    order = in_order(services("fleet"))
    for earlier, later in (
        ("redis-3", "redis-cluster"),
        ("redis-cluster", "publisher-1"),
        ("worker-1", "publisher-1"),
        ("publisher-4", "router-1"),
        ("router-2", "envoy"),
    ):
        assert order.index(earlier) < order.index(later)


def curl_of_the_page() -> tuple[str, bytes]:
    """Return path and body of the curl that the page tells to paste."""
    page = (ROOT / "docs" / "guides" / "compose-and-images.md").read_text(encoding="utf-8")
    [line] = re.findall(r"^curl .*$", page, re.MULTILINE)
    [path] = re.findall(r"127\.0\.0\.1:8000(/\S+)", line)
    [body] = re.findall(r"-d '(.*)'", line)
    return path, body.encode()


def asked(url: str, body: bytes | None = None) -> tuple[dict[str, str], Any]:
    """Return the headers and the JSON of an answer."""
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=SECONDS) as response:
        return dict(response.headers), json.load(response)


def query(running: Compose, expression: str) -> list[Any]:
    """Return what Prometheus says of an expression."""
    url = f"http://{running.address('prometheus', 9090)}/api/v1/query?"
    _, answer = asked(url + urllib.parse.urlencode({"query": expression}))
    found: list[Any] = answer["data"]["result"]
    return found


def until(condition: Any, what: str) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.1)


@pytest.mark.deep
@pytest.mark.timeout(600)
@pytest.mark.parametrize("profile", PROFILES)
def test_the_processes_of_a_profile_answer_the_page_s_curl_and_are_watched(
    tmp_path: Path, profile: str
) -> None:
    routers = ["router"] if profile == "single" else ["router-1", "router-2"]
    with Compose(tmp_path, profile) as running:
        for name in routers:
            with Client(running.address(name, 7400)) as client:
                until(lambda client=client: _all_exact(client), f"{name} knows all workers")
        path, body = curl_of_the_page()
        url = f"http://{running.address('envoy', 8000)}{path}"
        first, _ = asked(url, body)
        pod = first["x-warmpath-pod"]
        assert pod in WORKERS
        until(lambda: _is_warm(asked(url, body)[0], pod), "the same pod has the prompt cached")
        if "prometheus" in running.left_out:
            pytest.skip("`make prometheus` needs a package of Debian: nobody watches")
        watched = len(routers) + (4 if profile == "fleet" else 0)
        until(lambda: len(query(running, "up == 1")) == watched, "all are read")
        until(lambda: query(running, "sum(warmpath_pod_ready)"), "pods are ready")
        until(lambda: query(running, "warmpath:work_in_hand:mean2m"), "the rules are evaluated")
        assert not query(running, 'ALERTS{alertstate="firing"}')


def _all_exact(client: Client) -> bool:
    pods = client.pods("").pods
    exact = {pod.id for pod in pods if pod.ranks[0].trust.level == pb.Trust.EXACT}
    return exact == WORKERS


def _is_warm(headers: dict[str, str], pod: str) -> bool:
    return headers["x-warmpath-pod"] == pod and int(headers["x-warmpath-cached-tokens"]) > 0


@pytest.mark.deep
@pytest.mark.timeout(600)
def test_the_redis_cluster_and_its_content_survive_down_and_up(tmp_path: Path) -> None:
    def redis_only() -> Compose:
        one = Compose(tmp_path, "fleet")
        one.services = {name: of for name, of in one.services.items() if name.startswith("redis")}
        return one

    def cli(running: Compose, *words: str) -> str:
        host = running.address("redis-1", 6379).rpartition(":")[0]
        program = tmp_path / "bin" / "valkey-cli"
        command = [program, "-c", "-h", host, *words]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        return ended.stdout.strip()

    with redis_only() as running:
        assert "cluster_state:ok" in cli(running, "cluster", "info")
        nodes = {line.split()[0] for line in cli(running, "cluster", "nodes").splitlines()}
        assert len(nodes) == 3
        for number in range(20):
            assert cli(running, "set", f"key-{number}", str(number)) == "OK"
    with redis_only() as running:
        assert {line.split()[0] for line in cli(running, "cluster", "nodes").splitlines()} == nodes
        assert [cli(running, "get", f"key-{number}") for number in range(20)] == [
            str(number) for number in range(20)
        ]
