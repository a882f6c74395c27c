"""Logs which other writer has a pod."""

import logging

import msgspec

from warmpath.indexer.shared.layout.record import Claim
from warmpath.process.bytes import UNREADABLE

log = logging.getLogger(__name__)


class Rival:
    """The other writer of a pod. `model` and `keyspace` are this writer's own.

    `is_mistake` says whether a second writer is a mistake; else writers of the pod take turns.
    """

    def __init__(self, pod: str, *, model: str, keyspace: str, is_mistake: bool) -> None:
        self._pod = pod
        self._model = model
        self._keyspace = keyspace
        self._is_mistake = is_mistake
        self._owner = ""
        """The other writer that was logged last."""

    def log_rival(self, owner: str, said: bytes | None) -> None:
        """Log once which writer has the pod, by its claim `said`.

        Does nothing if the claim cannot be read or is an earlier owner's.
        """
        try:
            claim = msgspec.json.decode(said or b"", type=Claim)
        except UNREADABLE:
            return
        if owner == self._owner or claim.owner != owner:
            return
        self._owner = owner
        where = f"watched at {claim.watch}" if claim.watch else "which names no address"
        unlike = [
            f"{name} {theirs!r}, not {ours!r}"
            for name, theirs, ours in (
                ("model", claim.model, self._model), ("keyspace", claim.keyspace, self._keyspace),
            )
            if theirs != ours
        ]  # fmt: skip
        also = f", with {' and '.join(unlike)}" if unlike else ""
        other = f"pod {self._pod}: shared index: writer {owner} has the pod, {where}{also}"
        if self._is_mistake:
            # Without an address the other writer may be a router, which is not a second publisher.
            log.warning(
                "%s; %stwo publishers have --pod %s: give each pod its own id",
                other, "" if claim.watch else "if ", self._pod,
            )  # fmt: skip
        else:
            log.info("%s", other)

    def forget(self) -> None:
        """Enable the log line about the next rival, since this writer has the pod now."""
        self._owner = ""
