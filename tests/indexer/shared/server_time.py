"""Scripts for a real server whose clock shows what a test says."""

from warmpath.indexer.shared.redis.command import Call


def source_at(call: Call, milliseconds: int) -> str:
    """Return the source of a call's script, where the server's clock shows that time since 1970."""
    shown = f"{{'{milliseconds // 1000}', '{milliseconds % 1000 * 1000}'}}"
    return call.script.source.replace("redis.call('TIME')", shown)
