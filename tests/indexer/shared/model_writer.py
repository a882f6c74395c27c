"""A pod's writer, one atomic step at a time, and the keys that it has written to the index."""

import msgspec

from tests.indexer.shared.asked_server import AskedServer, Edge
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.keys.segment_value import decode
from warmpath.indexer.shared.layout.names import KeyNames, checkpoint
from warmpath.indexer.shared.layout.record import Claim, SpotOf
from warmpath.indexer.shared.redis.command import Call, Command, Script, script
from warmpath.indexer.shared.writer.calls import Status, apply_calls, fence_call, outcome
from warmpath.lab.verify.structure import holders

Does = AskedServer | Edge
TTL = 86_400_000
MADE_KNOWN = Script(
    "made_known",
    """redis.call('HSET', KEYS[1], 'claim', ARGV[1]) return redis.call('HDEL', KEYS[1], 'building')""",
)
"""Changes the fields that a sweeper reads as `publish.lua` and `log.lua` do."""


class ModelWriter:
    """Follows the design: claim, fence every bucket, write, publish; then write, log."""

    def __init__(
        self, does: Does, names: KeyNames, pod: str, number: int, *, enlists: bool = False
    ) -> None:
        self._enlists = enlists
        self._does = does
        self._names = names
        self.pod = pod
        self._next_base = 1 + number * 1_000_000
        self.token = 0
        self.base = 0
        self.fenced = 0
        """Number of buckets that the claim has fenced."""
        self.published = False
        self.is_lost = True
        """Whether the writer found a bucket or record changed by others; it must claim again."""
        self._counts: dict[int, int] = {}
        self.places: list[SpotOf | None] = []
        self.held: dict[int, dict[int, set[int]]] = {}
        """Number of a place in use -> segment -> keys."""
        self.earlier: tuple[int, dict[int, dict[int, set[int]]], int] | None = None
        """Base, content and number of places of the claim that the record still shows, if any."""
        self.known = 0

    def claim(self) -> None:
        if self.published and not self.is_lost and self.has_record():
            self.earlier = self.base, self.held, self.known
        if self._enlists:
            self._do(Call(script("enlist"), (self._names.pods,), (self.pod,)))
        self._next_base += 1
        self.base = self._next_base
        words = ("w", self.base, 1, 0, 60_000, TTL, "being built")
        keys = (self._names.record(self.pod), self._names.fence(self.pod))
        _, self.token = self._do(Call(script("claim"), keys, words))
        self.fenced, self.published, self.is_lost = 0, False, False
        self._counts, self.places, self.held, self.known = {}, [], {}, 0

    def fence(self) -> None:
        """Fence the next bucket."""
        said = outcome(self._do(fence_call(self._names, self.fenced, self.pod, self.token, TTL)))
        assert said.status is Status.APPLIED
        self.fenced += 1

    def begin(self) -> None:
        """Claim the pod, and fence every bucket."""
        self.claim()
        while self.fenced < self._names.buckets:
            self.fence()

    @property
    def may_write(self) -> bool:
        return not self.is_lost and self.fenced == self._names.buckets

    def write(self, number: int, segment: int, keys: set[int]) -> None:
        """Let a place hold exactly these keys of a segment."""
        if number == len(self.places):
            self.places.append(SpotOf(0, Tier.GPU, number))
            self.held[number] = {}
        had = self.held[number].get(segment, set())
        changes = {(segment, self._slot(number)): (sorted(keys - had), sorted(had - keys))}
        calls = apply_calls(self._names, self.pod, self.token, self._counts, changes, TTL)
        for bucket, call in calls:
            said = outcome(self._do(call))
            if said.status is not Status.APPLIED:
                self.is_lost = True
                return
            self._counts[bucket] = said.count
        self.held[number][segment] = set(keys)

    def drop(self, number: int) -> None:
        """Drop a place, and write that to the record at once."""
        self.places[number] = None
        del self.held[number]
        self.tell()

    def tell(self) -> None:
        """Publish the claim, or make its places known."""
        said = self._do(Command(("HMGET", self._names.record(self.pod), "token")))
        if said != [b"%d" % self.token]:
            self.is_lost = True
            return
        claim = Claim("w", self.base, self.places, "k", "m", 1)
        words = (msgspec.json.encode(claim),)
        self._do(Call(MADE_KNOWN, (self._names.record(self.pod),), words))
        self.published, self.known, self.earlier = True, len(self.places), None

    def record_ends(self) -> None:
        """End the lease; the writer does not know it yet."""
        self._do(Command(("DEL", self._names.record(self.pod))))

    def audit(self) -> bool:
        """Return whether every bucket is as it was left."""
        if self.is_lost:
            return False
        for bucket in range(self.fenced):
            said = self._do(Command(("HMGET", self._names.bucket(bucket), checkpoint(self.pod))))
            if said != [b"%d:%d" % (self.token, self._counts.get(bucket, 0))]:
                self.is_lost = True
        return not self.is_lost

    def has_record(self) -> bool:
        said = self._do(Command(("HMGET", self._names.record(self.pod), "token")))
        return bool(said == [b"%d" % self.token])

    def missing(self, found: dict[int, dict[int, set[int]]]) -> list[tuple[int, int, int]]:
        """Return (base, place's number, segment) wherever `found` has other keys than were written."""
        wrong = []
        contents = [(self.base, self.held)]
        if self.earlier is not None:
            contents.append(self.earlier[:2])
        for base, held in contents:
            for number, segments in held.items():
                there = found.get(Claim("", base, [], "", "", 1).slot(number), {})
                wrong += [
                    (base, number, segment)
                    for segment, keys in segments.items()
                    if there.get(segment, set()) != keys
                ]
        return wrong

    def _slot(self, number: int) -> int:
        return Claim("", self.base, [], "", "", 1).slot(number)

    def _do(self, one: Command | Call) -> object:
        reply = self._does.do(one)
        assert not isinstance(reply, Exception), reply
        return reply


def content(does: Does, names: KeyNames) -> dict[int, dict[int, set[int]]]:
    """Return the keys of each slot in the index, by segment."""
    found: dict[int, dict[int, set[int]]] = {}
    for bucket in range(names.buckets):
        fields = does.do(Command(("HGETALL", names.bucket(bucket))))
        for field, value in zip(fields[::2], fields[1::2], strict=True):
            if len(field) == 8:
                for key, slots in holders(decode(value)).items():
                    for slot in slots:
                        segments = found.setdefault(slot, {})
                        segments.setdefault(int.from_bytes(field, "little"), set()).add(key)
    return found
