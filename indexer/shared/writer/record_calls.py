"""Calls of the scripts that read and change what Redis says of one pod."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from indexer.pb.warmpath.watch.v1 import cache_watch_pb2 as pb
from indexer.shared.layout.names import Names
from indexer.shared.redis.command import Argument, Call, Command, script
from indexer.shared.writer.claimed import Claimed

FENCE_MS = 30 * 86_400_000


@dataclass(frozen=True, slots=True)
class RecordCalls:
    """Those of one pod's writer; `lease_ms` is what each of them renews."""

    names: Names
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
        """Put the pod on the list. Replies 1 where it was not there."""
        return Call(script("enlist"), (self.names.pods,), (self.pod,))

    def claim(self, base: int, *, take_over: bool, floor: int, reason: str) -> Call:
        """Claim the pod, with a token above `floor`. Replies whether it did, and the token."""
        keys = self._record, self.names.fence(self.pod)
        arguments = self.owner, base, int(take_over), floor, self.lease_ms, FENCE_MS, reason
        return Call(script("claim"), keys, arguments)

    def publish(self, token: int, applied: int, claimed: Claimed) -> Call:
        """Make a claim's content known, which is complete. Replies a status."""
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
        """Make a batch known that every bucket has. Replies a status.

        `entry` is its deltas as the log has them, `first_kept` the log's first entry from then on, and
        `moved` says whether the claim's places changed.
        """
        first, last = deltas[0].sequence, deltas[-1].sequence
        head: list[Argument] = [token, applied, first, last, entry, first_kept, self.lease_ms]
        said = _said(claimed, sorted({delta.state.rank for delta in deltas}))
        said += _claim_of(claimed) if moved else []
        return Call(script("log"), self._both, tuple(head + said))

    def renew(self, token: int, applied: int, audits: int) -> Call:
        """Renew the lease after so many audits. Replies a status."""
        return Call(script("renew"), (self._record,), (token, applied, audits, self.lease_ms))

    def keep(self, token: int, reason: str) -> Call:
        """Renew the lease without an audit; unsound from then on if there is a reason."""
        return Call(script("keep"), (self._record,), (token, self.lease_ms, reason))

    def owner_of(self) -> list[Command]:
        """Ask who has the pod, and for its claim, which may be an earlier owner's still."""
        return [Command(("HGET", self._record, field)) for field in ("owner", "claim")]


def _claim_of(claimed: Claimed) -> list[Argument]:
    return ["claim", msgspec.json.encode(claimed.claim())]


def _said(claimed: Claimed, ranks: Sequence[int]) -> list[Argument]:
    """Return fields and values of the record: what is said of ranks."""
    words: list[Argument] = []
    for rank in ranks:
        words += [f"state:{rank}", claimed.states()[rank].SerializeToString()]
        words += [f"blocks:{rank}", msgspec.json.encode(claimed.blocks(rank))]
    return words
