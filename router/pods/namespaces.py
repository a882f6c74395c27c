"""Lowers the trust in pods whose events omit a namespace (adapter, salt, extra key) or a drafter.

An engine keeps the blocks of a request with an adapter, a salt or SGLang's `extra_key` apart. If its
events omit that, such blocks look like plain ones and would count as hits for other requests. The
events alone cannot show it, so there are two other signs: a request with one of the three came through
this router, or the engine lists adapters among its models. Either way the pod's ranks are degraded, with
a reason.
"""

import re
from collections.abc import Sequence

from warmpath.indexer.engines.kind import NEVER
from warmpath.indexer.engines.table import ENGINES
from warmpath.indexer.follow.stream_source import NAMESPACES
from warmpath.router.pods.table import Pod
from warmpath.router.prompt.token_prompt import TokenPrompt

ENGINE = "engine"
"""The subject (`Rank.limit`) of trust limits that derive from an engine's version and models."""

DRAFTER = "drafter"
"""The subject (`Rank.limit`) of a trust limit that derives from an engine's speculative decoding."""

EAGLE = (
    "it drafts tokens, and its events have no lookahead_token_ids: with a drafter of the EAGLE kind it "
    "finds one block less than they show (eagle = false says that its drafter is another one)"
)
"""The reason of DRAFTER's limit. Source: `find_longest_cache_hit` of vLLM's
`vllm/v1/core/single_type_kv_cache_manager.py`, `drop_eagle_block` or `use_eagle`."""

WORDS = {"extra_key": "extra keys", "lora": "adapters", "cache_salt": "salts"}


def asked(prompt: TokenPrompt, pods: Sequence[Pod]) -> None:
    """Limit the trust in pods whose events omit the namespace of this prompt, which they may get."""
    if not (prompt.lora or prompt.cache_salt or prompt.extra_key):
        return
    fields = [name for name in WORDS if getattr(prompt, name)]
    for pod in pods:
        if not pod.asked.issuperset(fields):
            pod.asked = pod.asked.union(fields)
            limit_asked(pod)


def limit_asked(pod: Pod) -> None:
    """Limit the trust in a pod that gets requests with namespaces that its events omit."""
    omitted = [word for name, word in WORDS.items() if name in pod.asked and _is_omitted(pod, name)]
    words = " and ".join(omitted)
    reason = f"its events do not distinguish the blocks of requests with {words}, which come"
    for rank in pod.ranks:
        rank.limit(reason if words else "", NAMESPACES)


def limit_known(pod: Pod) -> None:
    """Limit the trust in a pod if its engine's version, caches and models call for it."""
    version = _numbers(pod.status.version)
    reason = ""
    kind = ENGINES[pod.engine]
    if version and version < kind.faulty_before:
        reason = kind.fault.format(pod.status.version)
    elif pod.status.is_hybrid:
        reason = "its model has sliding windows or states, and its events omit them"
    elif (
        (pod.status.adapters or len(pod.status.models) > 1) and version and _is_omitted(pod, "lora")
    ):
        reason = "it serves adapters, and its events do not distinguish their blocks"
    may_lose = kind.omits_drafted and pod.status.drafts and pod.may_be_eagle
    for rank in pod.ranks:
        rank.limit(reason, ENGINE)
        rank.limit(EAGLE if may_lose and not rank.layout.lookahead else "", DRAFTER)
    limit_asked(pod)


def _is_omitted(pod: Pod, name: str) -> bool:
    kind = ENGINES.get(pod.engine)  # a library's pod that is fed values has none
    first = kind.told_from.get(name) if kind is not None else None
    if kind is None or first is None:
        return False
    version = _numbers(pod.status.version)
    return version < first if version else first is NEVER or not kind.is_presumed_recent


def _numbers(version: str) -> tuple[int, ...]:
    """Return a version's numbers, for a pre-release those of its release; empty if there are none."""
    found = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", version)
    return tuple(int(part) for part in found.groups("0")) if found else ()
