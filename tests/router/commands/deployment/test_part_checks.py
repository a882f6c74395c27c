"""Redis and certificates, as `warmpath doctor --config` sees them."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

from indexer.shared.layout.names import KeyNames
from router.commands.deployment.check import Check
from router.commands.deployment.parts import certificates, shared_index
from router.config.read import load
from tests.indexer.shared.index_model import Edge
from tests.servers.certificates import Authority
from tests.servers.redis_server import RedisServer


def of_redis(folder: Path, url: str, prefix: str) -> dict[str, Check]:
    file = folder / "router.toml"
    table = f'[shared-index]\nurl = "{url}"\nprefix = "{prefix}"\n'
    file.write_text(f'{table}[[models]]\nname = "m"\n', encoding="utf-8")
    return {one.name: one for one in asyncio.run(shared_index(file, url, 2.0))}


def test_a_redis_that_may_delete_the_index_is_named(
    tmp_path: Path, redis_server: RedisServer, prefix: str, held_port: int
) -> None:
    found = of_redis(tmp_path, redis_server.url, prefix)
    assert found["answer"].change == "shared-index.prefix, or start publishers with --redis"
    assert found["maxmemory-policy"].verdict == "ok", "also of an index that is empty yet"
    with Edge(redis_server.url) as edge:
        edge.ensure(KeyNames(prefix))
    checks = of_redis(tmp_path, redis_server.url, prefix)
    assert {one.verdict for one in checks.values()} == {"ok"}
    redis_server.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        checks = of_redis(tmp_path, redis_server.url, prefix)
    finally:
        redis_server.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
    assert checks["answer"].verdict == "ok"
    assert checks["maxmemory-policy"].change == "maxmemory-policy noeviction in Redis"
    away = of_redis(tmp_path, f"redis://127.0.0.1:{held_port}", prefix)
    assert "no Redis answers" in away["answer"].text
    assert away["answer"].change == "start Redis, or change shared-index.url"


def test_a_certificate_that_ends_soon_is_named(tmp_path: Path) -> None:
    shown = Authority(tmp_path).certificate("router")
    file = tmp_path / "router.toml"
    tls = f'[server.tls]\ncert = "{shown.cert}"\nkey = "{shown.key}"\n'
    file.write_text(f'{tls}[[models]]\nname = "m"\n', encoding="utf-8")
    config, now = load(file), datetime.now(UTC)
    [first] = certificates(config, tmp_path, now)
    ends = datetime.fromisoformat(first.text.rpartition(" ")[2]).replace(tzinfo=UTC)
    for moment, verdict in ((now, first.verdict), (ends + timedelta(days=1), "WRONG")):
        [one] = certificates(config, tmp_path, moment)
        assert (one.subject, one.name, one.verdict) == ("certificate", "server.tls.cert", verdict)
    assert f"put a new one into {shown.cert}" in one.change
