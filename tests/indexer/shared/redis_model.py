"""The scripts and commands of the shared index in Python: a bucket, and Redis as a writer sees it, with a clock.

Buckets are kept unpacked: checkpoints, and the slots of each block. The tests of the writer run the model
beside a real server, which must reply and hold the same.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from warmpath.indexer.keys.key import WORD_BYTES, unpack_words
from warmpath.indexer.keys.segment_value import decode, spilled_blocks
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.layout.record import Claim, SpotOf
from warmpath.indexer.shared.redis.command import Call, Command, CommandRefusedError, Reply
from warmpath.indexer.shared.writer.calls import Status
from warmpath.lab.verify.structure import Bucket, holders

Change = tuple[int, int, list[int], list[int]]
"""Segment, slot, added keys, gone keys."""
Blocks = dict[int, set[int]]
"""Block's key -> the slots that hold it."""


def found_under(claim: Claim, contents: Iterable[Blocks]) -> Iterator[tuple[SpotOf, int]]:
    """Yield what readers find of buckets' contents: a place of the claim, and a block that it holds."""
    places = {claim.slot(n): spot for n, spot in enumerate(claim.places) if spot is not None}
    for blocks in contents:
        for key, slots in blocks.items():
            for slot in slots & places.keys():
                yield places[slot], key


class BucketModel:
    """Blocks by segment. `most` records are packed; a segment with more is spilled."""

    def __init__(self, most: int = 512) -> None:
        self.most = most
        self.blocks: dict[int, Blocks] = {}
        self.spilled: set[int] = set()
        self.checkpoints: dict[bytes, tuple[int, int]] = {}

    def apply(
        self, field: bytes, token: int, before: int, changes: Iterable[Change]
    ) -> tuple[Status, int, int]:
        stored = self.checkpoints.get(field, (0, 0))
        if stored[0] > token:
            return Status.FENCED, *stored
        if stored != (token, before) or field not in self.checkpoints:
            again = stored[0] == token and stored[1] > before
            return Status.DUPLICATE if again else Status.GAP, *stored
        for segment, slot, added, gone in changes:
            self._change(segment, slot, added, gone)
        self.checkpoints[field] = token, before + 1
        return Status.APPLIED, token, before + 1

    def _change(self, segment: int, slot: int, added: list[int], gone: list[int]) -> None:
        held = self.blocks.setdefault(segment, {})
        for key in added:
            held.setdefault(key, set()).add(slot)
        for key in gone:
            held.get(key, set()).discard(slot)
        self._tidy(segment)
        if len(held) > self.most:
            self.spilled.add(segment)

    def fence(self, field: bytes, token: int) -> tuple[Status, int, int]:
        stored = self.checkpoints.get(field, (0, 0))
        if stored[0] >= token:
            return Status.FENCED if stored[0] > token else Status.DUPLICATE, *stored
        self.checkpoints[field] = token, 0
        return Status.APPLIED, token, 0

    def purge(self, dead: set[int]) -> None:
        for segment, held in list(self.blocks.items()):
            for slots in held.values():
                slots.difference_update(dead)
            self._tidy(segment)

    def _tidy(self, segment: int) -> None:
        held = self.blocks[segment]
        for key in [key for key, slots in held.items() if not slots]:
            del held[key]
        if not held:
            del self.blocks[segment]
            self.spilled.discard(segment)

    @property
    def all_blocks(self) -> Blocks:
        return {key: slots for blocks in self.blocks.values() for key, slots in blocks.items()}

    def contents(self) -> Bucket:
        checkpoints = {field: b"%d:%d" % at for field, at in self.checkpoints.items()}
        return Bucket(self.blocks, self.spilled, checkpoints)


OOM = CommandRefusedError("OOM command not allowed when used memory > 'maxmemory'.")


def text(word: Any) -> str:
    return word.decode() if isinstance(word, bytes) else str(word)


class RedisModel:
    """Carries out a writer's commands. At the memory limit (`full`) it refuses those that take memory."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.full = False
        self.clock_ahead = 0.0
        """Seconds by which the server's own clock is ahead of `clock`; no time to live depends on it."""
        self.keys: dict[str, Any] = {}
        self.expiry: dict[str, float] = {}
        self._clock = clock

    @property
    def time(self) -> int:
        """The server's time in milliseconds."""
        return math.floor((self._clock() + self.clock_ahead) * 1000)

    def expire(self) -> list[str]:
        """Remove keys whose time to live is over; return their names."""
        gone = [key for key, at in self.expiry.items() if at <= self._clock()]
        for key in gone:
            self.drop(key)
        return gone

    def drop(self, key: str) -> None:
        self.keys.pop(key, None)
        self.expiry.pop(key, None)

    def run(self, asked: Command | Call) -> Reply:
        self.expire()
        if isinstance(asked, Call):
            name, keys = asked.script.name, asked.keys
            if self.full and name != "keep":
                return OOM
            return getattr(self, f"_{name}")(*keys, *asked.arguments)
        verb, key, *rest = asked.words
        assert isinstance(key, str)
        if verb == "PEXPIRE":
            return self._pexpire(key, rest[0])
        if verb == "PTTL":
            return self._pttl(key)
        assert verb == "HGET"
        return self._hget(key, rest[0])

    def _hget(self, key: str, field: Any) -> bytes | None:
        found = self.keys.get(key)
        if found is None:
            return None
        if isinstance(found, BucketModel):
            checkpoint = found.checkpoints.get(field)
            return b"%d:%d" % checkpoint if checkpoint else None
        value = found.get(text(field))
        return None if value is None else value.encode() if isinstance(value, str) else value

    def _pexpire(self, key: str, ms: Any) -> int:
        if key not in self.keys:
            return 0
        self.expiry[key] = self._clock() + int(ms) / 1000
        return 1

    def _pttl(self, key: str) -> int:
        if key not in self.keys:
            return -2
        return round((self.expiry[key] - self._clock()) * 1000) if key in self.expiry else -1

    def _schema(self, key: str, *words: Any) -> Reply:
        said = self.keys.setdefault(key, dict(zip(words[::2], words[1::2], strict=True)))
        return [text(word).encode() for pair in said.items() for word in pair]

    def _enlist(self, pods: str, pod: str) -> int:
        known = self.keys.setdefault(pods, {})
        new = int(pod not in known)
        known[pod] = "now"
        return new

    def _claim(
        self, record: str, fence: str, owner: str, base: int, over: int, floor: int, lease: int,
        life: int, reason: str,
    ) -> Reply:  # fmt: skip
        said = self.keys.get(record, {})
        token = int(said.get("token", 0))
        if said and said.get("owner") != owner and not over:
            return [0, token]
        if said.get("owner") == owner and said.get("building") == str(base):
            self._pexpire(record, lease)
            return [1, token]
        token = max(token, int(self.keys.get(fence, 0)), floor) + 1
        self.keys[fence] = str(token)
        self._pexpire(fence, life)
        said = self.keys.setdefault(record, {})
        said |= {"token": str(token), "owner": owner, "building": str(base), "audits": "0"}
        said["reason"] = reason
        said.pop("sound", None)
        self._pexpire(record, lease)
        return [1, token]

    def _fence(self, key: str, field: bytes, token: int, ttl: int) -> Reply:
        bucket = self.keys.get(key) or BucketModel()
        return self._changed(key, bucket, bucket.fence(field, token), ttl)

    def _apply(
        self, key: str, field: bytes, token: int, before: int, _after: int, ttl: int, *words: bytes
    ) -> Reply:
        bucket = self.keys.get(key) or BucketModel()
        said = [list(unpack_words(word)) for word in words]
        changes = [
            (said[at][0], said[at + 1][0], *said[at + 2 : at + 4]) for at in range(0, len(said), 4)
        ]
        return self._changed(key, bucket, bucket.apply(field, token, before, changes), ttl)

    def _changed(
        self, key: str, bucket: BucketModel, outcome: tuple[Status, int, int], ttl: int
    ) -> Reply:
        if outcome[0] is Status.APPLIED:
            self.keys[key] = bucket
            self._pexpire(key, ttl)
        return list(outcome)

    def _problem(self, record: str, token: int) -> Reply:
        said = self.keys.get(record)
        if not said:
            return [-3]
        return None if said["token"] == str(token) else [-1, int(said["token"])]

    def _publish(
        self, record: str, log: str, token: int, base: int, owner: str, applied: int, lease: int,
        *words: Any,
    ) -> Reply:  # fmt: skip
        if problem := self._problem(record, token):
            return problem
        if self.keys[record].get("building") != str(base):
            return [0]
        said = {"token": str(token), "owner": owner, "applied": str(applied), "audits": "0"}
        self.keys[record] = said | dict(zip(words[::2], words[1::2], strict=True))
        self.drop(log)
        self._pexpire(record, lease)
        return [1]

    def _log(
        self, record: str, log: str, token: int, before: int, first: int, last: int, deltas: bytes,
        kept: int, lease: int, *words: Any,
    ) -> Reply:  # fmt: skip
        if problem := self._problem(record, token):
            return problem
        said = self.keys[record]
        if said.get("applied") == str(last):
            return [0]
        if "building" in said or said.get("applied") != str(before):
            return [-2]
        assert kept <= last
        entries = self.keys.get(log, [])
        if entries and entries[-1][0] >= last:
            return [-2]
        self.keys[log] = [*entries, (last, first, deltas)]
        said |= {"applied": str(last)} | dict(zip(words[::2], words[1::2], strict=True))
        self._pexpire(record, lease)
        self._pexpire(log, 10 * lease)
        return [1]

    def _renew(
        self, record: str, token: int, applied: int, audits: int, lease: int, confirmation: int,
        behind: int | str,
    ) -> Reply:  # fmt: skip
        if problem := self._problem(record, token):
            return problem
        said = self.keys[record]
        if "building" in said or said.get("applied") != str(applied):
            return [-2]
        confirmed = int(said.get("sound", "0").partition(":")[0])
        if int(said["audits"]) > audits or confirmed > confirmation:
            return [-2]
        audited = int(said["audits"]) < audits
        if audited:
            said["audits"] = str(audits)
            said.pop("reason", None)
        if (audited or "sound" in said) and confirmed < confirmation:
            is_known = "sound" in said and confirmed == confirmation - 1 and behind != ""
            said["sound"] = f"{confirmation}:{behind}" if is_known else str(confirmation)
        self._pexpire(record, lease)
        return [1]

    def _keep(self, record: str, token: int, lease: int, reason: str) -> Reply:
        if problem := self._problem(record, token):
            return problem
        self._pexpire(record, lease)
        if reason:
            self.keys[record].pop("sound", None)
            if not self.full:
                self.keys[record]["reason"] = reason
        return [1]

    def found(self, names: KeyNames, claim: Claim) -> Iterator[tuple[SpotOf, int]]:
        """Yield what readers find under a claim's places."""
        buckets = [self.keys.get(names.bucket(number)) for number in range(names.buckets)]
        return found_under(claim, [bucket.all_blocks for bucket in buckets if bucket])


def read_bucket(fields: Mapping[bytes, bytes]) -> tuple[dict[bytes, bytes], Blocks]:
    """Return the checkpoints and the blocks of a real bucket."""
    blocks: Blocks = {}
    checkpoints = {name: value for name, value in fields.items() if name.startswith(b"checkpoint")}
    for name in fields.keys() - checkpoints.keys():
        # A marker of a spilled segment holds nothing: its blocks have fields of their own.
        is_block = len(name) == 2 * WORD_BYTES
        if is_block or (len(name) == WORD_BYTES and spilled_blocks(fields[name]) is None):
            blocks |= holders(decode(fields[name]))
    return checkpoints, blocks
