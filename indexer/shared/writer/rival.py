"""Who else writes a pod, as its writer tells in the log."""

import logging

import msgspec

from indexer.shared.layout.record import Claim

log = logging.getLogger(__name__)


class Rival:
    """The other writer of a pod. `model` and `keyspace` are our own claim's.

    `is_mistake` says whether there should be none; else it is one whose turn it is.
    """

    def __init__(self, pod: str, *, model: str, keyspace: str, is_mistake: bool) -> None:
        self._pod = pod
        self._model = model
        self._keyspace = keyspace
        self._is_mistake = is_mistake
        self._owner = ""
        """Which was told of last."""

    def tell_of(self, owner: str, said: bytes | None) -> None:
        """Log who has the pod, once, when its own claim can be read; `said` may be another's still."""
        try:
            claim = msgspec.json.decode(said or b"", type=Claim)
        except msgspec.MsgspecError:
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
            # A router may write too, and names no address either.
            log.warning(
                "%s; %stwo publishers have --pod %s: give each pod its own id",
                other, "" if claim.watch else "if ", self._pod,
            )  # fmt: skip
        else:
            log.info("%s", other)

    def forget(self) -> None:
        """Take note that the pod is ours: whoever takes it next is told of again."""
        self._owner = ""
