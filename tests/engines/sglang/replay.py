"""A recording of SGLang's own prefix cache, replayed: what warmpath says of each request when it comes.

A line of a recording (`tests/engines/sglang/drive.py`) is a batch as it was published, or a request with the
tokens that SGLang's `match_prefix` found for it.
"""

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.indexer.consistent import check
from tests.indexer.memory_index import MemoryIndex
from warmpath.indexer.embedded import embedded_index
from warmpath.indexer.engines import sglang
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.follow.instance import RankSource
from warmpath.indexer.keys.key import pack_tokens
from warmpath.indexer.ranks import Ingest
from warmpath.indexer.trust import Trust
from warmpath.router.match.match import Scorer
from warmpath.router.pods.namespaces import asked, limit_known
from warmpath.router.pods.table import Pod, Status
from warmpath.router.prompt.token_prompt import ReadPrompt, TokenPrompt
from warmpath.scorer.match import NOTHING
from warmpath.scorer.strategies import longest_prefix


@dataclass(frozen=True)
class Answer:
    """What was said of a request, and what SGLang found for it, in tokens."""

    said: int
    found: int
    said_on_device: int
    found_on_device: int
    full: int | None
    """Tokens that the full part of a hybrid cache holds; None where the version does not tell."""
    trust: Trust
    space: dict[str, str]
    """The request's `lora`, `cache_salt` and `extra_key`."""

    @property
    def is_true(self) -> bool:
        return (self.said, self.said_on_device) == (self.found, self.found_on_device)


def read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a recording's head and its lines."""
    with gzip.open(path, "rt") as lines:
        head, *rows = map(json.loads, lines)
    return head, rows


def answers(path: Path, *, pure: bool, version: str = "") -> Iterator[Answer]:
    """Follow a recording and score each request when it comes, as a router does.

    `pure` takes the index in plain Python instead of the compiled one. `version` is what the engine's
    /server_info says; empty where it did not answer.
    """
    head, rows = read(path)
    index = MemoryIndex() if pure else embedded_index(1 << 24)
    ingest = Ingest(index, hash_seed="", pending_bytes=1 << 24, stale_after=1.0, clock=lambda: 0.0)
    source = RankSource(
        "p", 0, "m", sglang.decode, has_replay=False, capacity=head["pages"],
        dialect="" if pure else "sglang",
    )  # fmt: skip
    rank = ingest.add(source)
    rank.connected()
    # A model's windows and states show in the engine's metrics as soon as a request uses them.
    status = Status(version=version, is_hybrid=bool(head.get("window") or head.get("states")))
    pod = Pod("p", "", "m", (rank,), status=status, engine="sglang")
    limit_known(pod)
    scorer = Scorer(ingest, "")
    for row in rows:
        if row["kind"] == "events":
            rank.live("", row["seq"], bytes.fromhex(row["payload_hex"]))
            continue
        apart = {name: row[name] for name in ("lora", "cache_salt", "extra_key")}
        prompt = TokenPrompt("m", pack_tokens(row["tokens"]), **apart)
        prompt = ReadPrompt(prompt, 0).apart([pod.engine])
        asked(prompt, [pod])
        match = scorer.matches(prompt, [rank], longest_prefix).get(rank, NOTHING)
        blocks = sum(s.stop - s.start for s in match.leading if s.tier == Tier.GPU)
        device = min(blocks * match.block_size, match.matched_tokens)
        found = row["cached"]
        yield Answer(
            match.matched_tokens,
            found,
            device,
            row.get("device", found),
            row.get("full"),
            rank.trust,
            apart,
        )
    check(ingest)
