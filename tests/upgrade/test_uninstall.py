"""What stays behind when routers and publishers are removed, as docs/guides/upgrade.md says it."""

import asyncio
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.deploy.manifests import CHART, ROOT, chart, needs_helm, overlay
from tests.lab.simworker.local_worker import LocalWorker
from tests.router.shared_stand import WORKER, publisher, router, seen
from tests.servers.redis_server import RedisServer
from tests.waiting import until
from warmpath.lab.local.redis_server import find_server
from warmpath.publisher.assemble import publishing

PAGE = (ROOT / "docs" / "guides" / "upgrade.md").read_text()
STAY = {"CustomResourceDefinition", "Namespace", "PersistentVolumeClaim", "ClusterRole", "ClusterRoleBinding"}  # fmt: skip
"""Kinds that outlive a release, or lie outside its namespaces."""


@needs_helm
@pytest.mark.parametrize("name", ["direct", "watch", "redis", "gateway"])
def test_no_object_outlives_a_release(name: str) -> None:
    examples = CHART / "examples"
    values = [examples / f"{one}.yaml" for one in (name, "closed", "monitoring")]
    installed = chart(*(word for file in values for word in ("--values", file)))
    for one in installed + overlay(name):
        assert one["kind"] not in STAY
        assert not one["metadata"].get("finalizers")
        noted = one["metadata"].get("annotations") or {}
        assert not {"helm.sh/hook", "helm.sh/resource-policy"} & noted.keys()
    [config] = [one for one in overlay(name) if one["kind"] == "ConfigMap"]
    assert config["metadata"]["labels"]["app.kubernetes.io/instance"] == "warmpath"


def unlinked(server: RedisServer, prefix: str) -> None:
    """Run the page's command."""
    [command] = re.findall(r"^redis-cli .*unlink$", PAGE, re.MULTILINE)
    for name, value in {"HOST": "127.0.0.1", "PORT": str(server.port), "PREFIX": prefix}.items():
        command = command.replace(name, value)
    programs = Path(find_server("redis")).parent
    subprocess.run(
        command, shell=True, check=True, timeout=60, capture_output=True,
        env=os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"},
    )  # fmt: skip


@pytest.mark.deep
async def test_the_command_for_redis_removes_every_key_of_the_prefix_and_no_other(
    redis_server: RedisServer, prefix: str, tmp_path: Path
) -> None:
    url = redis_server.url
    async with (
        LocalWorker.of(WORKER) as worker,
        publishing(publisher(worker, url, prefix)),
        router(tmp_path, url, prefix, seen(worker), "share-bookings = true") as one,
    ):
        await until(one.is_believed)
    with redis_server.client() as client:
        kept = {key.decode() for key in client.keys(f"{prefix}:*") if client.ttl(key) == -1}
        assert {f"{prefix}:schema", f"{prefix}:pods"} <= kept
        client.set(f"{prefix}-other:pods", 1)
        await asyncio.to_thread(unlinked, redis_server, prefix)
        left = {key.decode() for key in client.keys(f"{prefix}*")}
        client.delete(f"{prefix}-other:pods")
    assert left == {f"{prefix}-other:pods"}, kept
