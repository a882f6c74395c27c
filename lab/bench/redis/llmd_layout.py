"""llm-d's layout of the shared index: a hash per block key with a field per pod.

Reimplemented from its public source, `pkg/kvcache/kvblock/redis.go` and `index.go` of
llm-d/llm-d-kv-cache at commit 02bff241f63655fc7614c9f1877bb12a58638272. There a key is the block's hash
in decimal digits, and a field is `POD@TIER` with an empty value. `Lookup` is one pipeline of HKEYS over
all blocks. `Add` is one pipeline of HSETs, with a SET of `engine:HASH` for each block, from the engine's
name to the key. `Evict` takes one block at a time: GET of the engine's name, HDEL, and a script that
deletes the name if the hash is gone. Later versions (llm-d/llm-d-router at 36da54d7) name a pod by a
JSON object of some 90 bytes, for which Redis leaves its compact encoding; this layout has the
shorter names.
"""

from collections.abc import Sequence

from warmpath.indexer.shared.redis.command import Call, Command, Script
from warmpath.lab.bench.redis.layout import Changes, Talk

PRUNE = Script(
    "llmd_prune",
    "if redis.call('HLEN', KEYS[1]) == 0 then redis.call('DEL', KEYS[2]) return 1 end return 0",
)


class LlmdLayout:
    """The part of llm-d's layout that answers the same look-ups; the parts left out would cost it time.

    Blocks that come together are added in one pipeline and removed in one, the engine's names are not
    kept, and a look-up parses no field. With `engines` it writes as llm-d does: a pipeline for each
    event's run of blocks, names kept, and blocks removed one by one.
    """

    def __init__(self, pods: int, *, engines: bool = False) -> None:
        self._fields = [f"10.0.{pod >> 8}.{pod & 255}@gpu".encode() for pod in range(pods)]
        self._pods = {field: pod for pod, field in enumerate(self._fields)}
        self._engines = engines

    def begin(self) -> Talk[None]:
        """Do nothing: the layout needs no records."""
        yield ()

    def look_up(self, keys: Sequence[int]) -> Talk[dict[int, int]]:
        replies = yield [Command(("HKEYS", str(key))) for key in keys]
        found: dict[int, int] = {}
        going: set[bytes] = set(replies[0])
        last = replies[0]
        for depth, fields in enumerate(replies):
            if fields == last:
                continue
            last = fields
            still = going.intersection(fields)
            for field in going - still:
                found[self._pods[field]] = depth
            going = still
            if not going:
                break
        for field in going:
            found[self._pods[field]] = len(keys)
        return found

    def add(self, pod: int, changes: Changes) -> Talk[None]:
        field = self._fields[pod]
        if self._engines:
            for keys in changes.values():
                asked = []
                for key in keys:
                    asked.append(Command(("SET", _engine(key), str(key))))
                    asked.append(Command(("HSET", str(key), field, "")))
                yield asked
            return
        yield [Command(("HSET", str(key), field, "")) for keys in changes.values() for key in keys]

    def remove(self, pod: int, changes: Changes) -> Talk[None]:
        field = self._fields[pod]
        blocks = [key for keys in changes.values() for key in keys]
        if self._engines:
            for key in blocks:
                name = _engine(key)
                replies = yield [Command(("GET", name))]
                yield [Command(("HDEL", replies[0], field))]
                yield [Call(PRUNE, (replies[0].decode(), name))]
            return
        yield [Command(("HDEL", str(key), field)) for key in blocks]


def _engine(key: int) -> str:
    """Return the Redis key of the engine's name for a block; all pods share it, so few are kept."""
    return f"engine:{key ^ 0x5555555555555555}"
