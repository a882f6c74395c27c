"""Calls of the scripts that change one pod's record and log in Redis."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.redis.command import Argument, Call, Command, script
from warmpath.indexer.shared.writer.claimed import Claimed
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2 as pb

FENCE_MS = 30 * 86_400_000


@dataclass(frozen=True, slots=True)
class RecordCalls:
    """The calls of one pod's writer; they renew the record's lease to `lease_ms`."""

    names: KeyNames
    pod: str
    owner: str
    lease_ms: int

    @property
    def _record(self) -> str:
        return self.names.record(self.pod)

    @property
    def _both(self) -> tuple[str, str]:
        return self._record, self.names.log(self.pod)

    def enlist(self) -> Call:
        """Return the call that puts the pod into the hash of pods; replies 1 where it was not there."""
        return Call(script("enlist"), (self.names.pods,), (self.pod,))

    def claim(self, base: int, *, take_over: bool, floor: int, reason: str) -> Call:
        """Return the call that claims the pod with a token above `floor`.

        Replies success and token, and where it succeeds the server's time in milliseconds.
        """
        keys = self._record, self.names.fence(self.pod)
        arguments = self.owner, base, int(take_over), floor, self.lease_ms, FENCE_MS, reason
        return Call(script("claim"), keys, arguments)

    def publish(self, token: int, applied: int, claimed: Claimed) -> Call:
        """Return the call that puts a claim's complete content into the record; replies a status."""
        head: list[Argument] = [token, claimed.base, self.owner, applied, self.lease_ms]
        said = _claim_of(claimed) + _said(claimed, sorted(claimed.states()))
        return Call(script("publish"), self._both, tuple(head + said))

    def log(
        self,
        token: int,
        applied: int,
        claimed: Claimed,
        *,
        deltas: Sequence[pb.Delta],
        entry: bytes,
        first_kept: int,
        moved: bool,
    ) -> Call:
        """Return the call that adds a batch, which every bucket has, to log and record.

        Replies a status. `entry` is the batch's deltas as the log has them, `first_kept` the log's first
        entry from then on, and `moved` says whether the claim's places changed.
        """
        first, last = deltas[0].sequence, deltas[-1].sequence
        head: list[Argument] = [token, applied, first, last, entry, first_kept, self.lease_ms]
        said = _said(claimed, sorted({delta.state.rank for delta in deltas}))
        said += _claim_of(claimed) if moved else []
        return Call(script("log"), self._both, tuple(head + said))

    def renew(
        self,
        token: int,
        applied: int,
        audits: int,
        *,
        confirmation: int,
        behind: int,
        at: int | None,
    ) -> Call:
        """Return the call that renews the lease; replies a status and the time.

        It comes after that many audits, and is the claim's `confirmation`-th: the index is `behind`
        milliseconds behind the engine, and the server's clock shows `at` milliseconds or more; None: not
        known, and the call confirms nothing.
        """
        head: list[Argument] = [token, applied, audits, self.lease_ms]
        said: list[Argument] = [confirmation, behind, "" if at is None else at]
        return Call(script("renew"), (self._record,), tuple(head + said))

    def keep(self, token: int, reason: str) -> Call:
        """Return the call that renews the lease without an audit; a reason makes the record unsound."""
        return Call(script("keep"), (self._record,), (token, self.lease_ms, reason))

    def owner_of(self) -> list[Command]:
        """Return the commands for the record's owner, its claim and the rest of its lease (ms).

        The claim is perhaps still an earlier owner's.
        """
        fields = [Command(("HGET", self._record, field)) for field in ("owner", "claim")]
        return [*fields, Command(("PTTL", self._record))]


def _claim_of(claimed: Claimed) -> list[Argument]:
    return ["claim", msgspec.json.encode(claimed.claim())]


def _said(claimed: Claimed, ranks: Sequence[int]) -> list[Argument]:
    """Return the record's fields and values for the states and blocks of ranks."""
    words: list[Argument] = []
    for rank in ranks:
        words += [f"state:{rank}", claimed.states()[rank].SerializeToString()]
        words += [f"blocks:{rank}", msgspec.json.encode(claimed.blocks(rank))]
    return words
