"""llm-d's index and scorer, written after their description: block by block, and as slowly as that.

Source: llm-d-kv-cache 7be76e1: `pkg/kvevents/pool.go` (which keys events give to blocks),
`pkg/kvcache/kvblock/in_memory.go` (who holds a key), `pkg/kvcache/kvblock_scorer.go` (scores). Removals
count copies, as `pkg/kvevents` of llm-d-router ebab687 does: vLLM announces a block once per copy.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from warmpath.indexer.engines.event import Cleared, Event, Removed, Stored
from warmpath.indexer.keys.key import unpack_tokens

Key = tuple[object, ...]
WEIGHTS: Mapping[str, float] = {"gpu": 1.0, "cpu": 0.8}
"""llm-d's default; any other tier weighs 1."""


class LlmdIndexer:
    """One index. `block_size` is llm-d's `blockSizeTokens`; a multiple or a part of the engines'."""

    def __init__(self, block_size: int, weights: Mapping[str, float] = WEIGHTS) -> None:
        self._block_size = block_size
        self._weights = weights
        self._holders: dict[Key, set[tuple[str, str]]] = {}
        """Pods and tiers by key."""
        self._keys: dict[int, list[Key]] = {}
        """Keys by the engine's name of a block."""
        self._copies: Counter[tuple[str, str, int]] = Counter()

    def apply(self, pod: str, model: str, events: Sequence[Event]) -> None:
        """Apply a batch of a pod's events."""
        for event in events:
            if isinstance(event, Stored):
                self._store(pod, event.lora or model, event)
            elif isinstance(event, Removed):
                self._remove(pod, event)
            elif isinstance(event, Cleared):
                self.clear(pod)

    def _store(self, pod: str, model: str, event: Stored) -> None:
        parent: Key = (model,)
        if event.parent is not None:
            known = self._keys.get(event.parent)
            if not known:
                return
            parent = known[-1]
        tokens = unpack_tokens(event.tokens) if event.tokens else []
        taints = event.extras or ()
        made = self._made(parent, tokens, [*taints], event.block_size)
        for number, name in enumerate(event.hashes):
            self._copies[pod, event.tier, name] += 1
            if made:
                self._keys[name] = _share(made, number, len(event.hashes))
        keys = made or [key for name in event.hashes for key in self._keys.get(name, ())]
        for key in keys:
            self._holders.setdefault(key, set()).add((pod, event.tier))

    def _made(
        self, parent: Key, tokens: Sequence[int], taints: Sequence[bytes | None], size: int
    ) -> list[Key]:
        made = []
        step = self._block_size
        for start in range(0, len(tokens) - step + 1, step):
            taint = taints[start // size] if start // size < len(taints) else None
            parent = (hash((parent, tuple(tokens[start : start + step]), taint)),)
            made.append(parent)
        return made

    def _remove(self, pod: str, event: Removed) -> None:
        assert event.tier is not None
        for name in event.hashes:
            self._copies[pod, event.tier, name] -= 1
            if self._copies[pod, event.tier, name] <= 0:
                for key in self._keys.get(name, ()):
                    self._holders.get(key, set()).discard((pod, event.tier))

    def clear(self, pod: str) -> None:
        """Forget all blocks of a pod."""
        for holders in self._holders.values():
            holders.difference_update([one for one in holders if one[0] == pod])
        for name in [name for name in self._copies if name[0] == pod]:
            del self._copies[name]

    def scores(
        self, tokens: Sequence[int], model: str, pods: Collection[str] = ()
    ) -> dict[str, float]:
        """Return each pod's score; without `pods`, of all pods that hold the first block."""
        scores: dict[str, float] = {}
        active: set[str] | None = None
        for key in self._made((model,), tokens, (), self._block_size):
            weights: dict[str, float] = {}
            for pod, tier in self._holders.get(key, ()):
                if not pods or pod in pods:
                    weights[pod] = max(weights.get(pod, 0.0), self._weights.get(tier, 1.0))
            active = {*weights} if active is None else active & weights.keys()
            for pod in active:
                scores[pod] = scores.get(pod, 0.0) + weights[pod]
        return scores


def _share(keys: list[Key], number: int, names: int) -> list[Key]:
    """Return the keys that belong to one of `names` names: one each, several each, or one of several."""
    most = max(len(keys), names)
    pairs = [(at * names // most, at * len(keys) // most) for at in range(most)]
    return [keys[key] for name, key in pairs if name == number]
