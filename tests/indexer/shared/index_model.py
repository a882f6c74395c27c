"""Redis as far as claims, writes and sweeps need it: a real server, or a model of the scripts."""

import asyncio
import math
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol, Self, TypeVar

import redis

from tests.indexer.segment_values import encode, pack
from tests.indexer.shared.ensured_schema import ensure
from warmpath.indexer.keys.key import unpack_words
from warmpath.indexer.keys.segment_value import decode, slots_of
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.redis.command import Call, Command, CommandRefusedError, Reply
from warmpath.indexer.shared.redis.connect import RedisSettings, connect
from warmpath.lab.verify.structure import holders

Result = TypeVar("Result")


class Does(Protocol):
    """Carries out one command after the other."""

    def do(self, one: Command | Call) -> Reply: ...


class Server:
    """A real server."""

    def __init__(self, client: "redis.Redis[bytes]") -> None:
        self._client = redis.Redis(connection_pool=client.connection_pool)
        # Replies must be as the server sends them.
        self._client.response_callbacks.clear()

    def do(self, one: Command | Call) -> Reply:
        try:
            if isinstance(one, Command):
                return self._client.execute_command(*one.words)
            source = one.script.source
            return self._client.execute_command(
                "EVAL", source, len(one.keys), *one.keys, *one.arguments
            )
        except redis.ResponseError as error:
            return CommandRefusedError(str(error))


class Edge:
    """A deployment's Redis over the product's connections, one command at a time. Close it at the end."""

    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner()
        self.redis = self._runner.run(connect(RedisSettings(url)))

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Do what needs the connections."""
        return self._runner.run(work)

    def do(self, one: Command | Call) -> Reply:
        (reply,) = self._runner.run(self.redis.run([one], timeout=10))
        return reply

    def ensure(self, names: KeyNames) -> None:
        self._runner.run(ensure(self.redis, names))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self.redis.close())
        self._runner.close()


def _bytes(word: bytes | str | int) -> bytes:
    return word if isinstance(word, bytes) else str(word).encode()


class Model:
    """Redis' hashes and strings, and the scripts on them. Values of segments are never spilled."""

    def __init__(self) -> None:
        self.hashes: dict[str, dict[bytes, bytes]] = {}
        self.strings: dict[str, bytes] = {}
        self.now = 1_000_000

    def do(self, one: Command | Call) -> Reply:
        if isinstance(one, Call):
            run: Callable[..., Reply] = getattr(self, f"_{one.script.name}")
            return run(*one.keys, *(_bytes(word) for word in one.arguments))
        name, key, *words = one.words
        assert isinstance(key, str)
        if name == "GET":
            return self.strings.get(key)
        fields = self.hashes.setdefault(key, {})
        if name == "HKEYS":
            return list(fields)
        if name == "HMGET":
            return [fields.get(_bytes(word)) for word in words]
        if name == "HGETALL":
            return [part for pair in fields.items() for part in pair]
        if name in {"DEL", "UNLINK"}:
            return 1 if self.hashes.pop(key) else 0
        if name == "PTTL":
            return 1000 if fields else -2
        if name == "HSCAN":
            return self._page(fields, *words)
        raise AssertionError(name)

    def _page(self, fields: Mapping[bytes, bytes], *words: Any) -> list[Any]:
        """Return a page in the order of the fields' names, so that no field that stays is missed."""
        cursor, options = int(words[0]), words[1:]
        given = dict(zip(options[::2], options[1::2], strict=True))
        # A cursor is the number (`_rank`) of the last name that was looked at.
        rest = sorted(field for field in fields if _rank(field) > cursor)
        some = rest[: given["COUNT"]]
        begins = given.get("MATCH", b"*")[:-1]
        shown = [part for f in some if f.startswith(begins) for part in (f, fields[f])]
        last = len(some) == len(rest)
        return [b"0" if last else b"%d" % _rank(some[-1]), shown]

    def _enlist(self, pods: str, pod: bytes) -> Reply:
        self.hashes.setdefault(pods, {})[pod] = b"%d" % self.now
        return 1

    def _claim(self, record: str, fence: str, *words: bytes) -> Reply:
        owner, base, _takes, floor, _lease, _life, reason = words
        said = self.hashes.setdefault(record, {})
        past = (int(said.get(b"token", 0)), int(self.strings.get(fence, 0)), int(floor))
        token = max(past) + 1
        self.strings[fence] = b"%d" % token
        said |= {b"token": b"%d" % token, b"owner": owner, b"building": base, b"reason": reason}
        said.pop(b"sound", None)
        return [1, token]

    def _made_known(self, record: str, claim: bytes) -> Reply:
        self.hashes[record][b"claim"] = claim
        return int(self.hashes[record].pop(b"building", None) is not None)

    def _fence(self, bucket: str, field: bytes, token: bytes, _ttl: bytes) -> Reply:
        self.hashes.setdefault(bucket, {})[field] = token + b":0"
        return [1, int(token), 0]

    def _apply(self, bucket: str, *words: bytes) -> Reply:
        field, token, before, after, _ttl, *changes = words
        fields = self.hashes.setdefault(bucket, {})
        stored = fields.get(field, b"0:0")
        if stored != token + b":" + before:
            token_, count = stored.split(b":")
            return [-1 if int(token_) > int(token) else -2, int(token_), int(count)]
        for at in range(0, len(changes), 4):
            segment, slot, added, gone = changes[at : at + 4]
            held = holders(decode(fields[segment])) if segment in fields else {}
            for key in unpack_words(added):
                held.setdefault(key, set()).add(int.from_bytes(slot, "little"))
            for key in unpack_words(gone):
                held.get(key, set()).discard(int.from_bytes(slot, "little"))
            self._put(fields, segment, held)
        fields[field] = token + b":" + after
        return [1, int(token), int(after)]

    def _put(self, fields: dict[bytes, bytes], segment: bytes, held: dict[int, set[int]]) -> None:
        left = {key: slots for key, slots in held.items() if slots}
        if left:
            fields[segment] = encode(pack(left))
        else:
            fields.pop(segment, None)

    def _purge(self, bucket: str, dead: bytes, *segments: bytes) -> Reply:
        fields = self.hashes.setdefault(bucket, {})
        doomed = set(unpack_words(dead))
        changed = 0
        for segment in segments:
            if segment in fields and doomed & set(slots_of(fields[segment])):
                held = holders(decode(fields[segment]))
                self._put(fields, segment, {key: slots - doomed for key, slots in held.items()})
                changed += 1
        return changed

    def _retire(self, bucket: str, *triples: bytes) -> Reply:
        fields = self.hashes.setdefault(bucket, {})
        doomed = []
        for at in range(0, len(triples), 3):
            field, known, gone = triples[at : at + 3]
            if field in fields:
                if int(fields[field].split(b":")[0]) > int(known):
                    return -1
                if gone == b"1":
                    doomed.append(field)
        for field in doomed:
            del fields[field]
        return len(doomed)

    def _heal(self, *_keys_and_commands: str | bytes) -> Reply:
        return []

    def _outlive(self, fence: str, token: bytes, _life: bytes) -> Reply:
        kept = max(int(token), int(self.strings.get(fence, 0)))
        self.strings[fence] = b"%d" % kept
        return kept

    def _roll(self, pods: str, remembered: bytes, there: bytes, *names: bytes) -> Reply:
        fields = self.hashes.setdefault(pods, {})
        old: list[bytes] = []
        for number, pod in enumerate(names):
            age = self.now - int(fields[pod]) if pod in fields else math.inf
            if number < int(there):
                if age > int(remembered) / 10:
                    fields[pod] = b"%d" % self.now
            elif pod not in fields:
                fields[pod] = b"%d" % self.now
            elif age > int(remembered):
                old += [pod, fields[pod]]
        return old

    def _leave(self, pods: str, *pairs: bytes) -> Reply:
        fields = self.hashes.setdefault(pods, {})
        gone = [
            pod
            for pod, value in zip(pairs[::2], pairs[1::2], strict=True)
            if fields.get(pod) == value
        ]
        for pod in gone:
            del fields[pod]
        return len(gone)


def _rank(field: bytes) -> int:
    """Return a number above 0 that orders fields as their names do."""
    return int.from_bytes(field[:40].ljust(40, b"\0"), "big") + 1
