"""Answers Dynamo's queries for overlaps, from bytes to bytes. No sockets.

Dynamo's unit: leading blocks in the fastest tier, and how far each slower tier extends them.

The pages that Dynamo's callers POST to, on the router's HTTP listener.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import msgspec
from aiohttp import web

from warmpath.indexer.rank import Rank
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.calls.holdings import HeldBlocks, Holdings
from warmpath.router.calls.service import RouterService
from warmpath.router.match.forms import UNKNOWN
from warmpath.router.pages.dynamo_query import FIELDS, parse
from warmpath.router.pages.http_call import answered, answering
from warmpath.router.pages.listener import Page
from warmpath.router.pick.eligible import NoPodError
from warmpath.router.prompt.bad_request import BadRequestError
from warmpath.router.prompt.models import UnknownModelError
from warmpath.router.tracing.tracer import NO_TRACER, Tracer
from warmpath.scorer.match import TIERS, Match


class Reach(NamedTuple):
    """Leading blocks of a prompt; each number includes the one before it."""

    gpu: int = 0
    cpu: int = 0
    disk: int = 0
    """With the disk and remote tiers."""


def reach_of(match: Match) -> Reach:
    """Return how far a rank's tiers reach.

    Each tier goes on from the end of the tier before it, and cannot go back to a faster one.

    Source: `query_lower_tiers` in Dynamo's `lib/kv-router/src/indexer/lower_tier_indexers.rs`, and
    `build_mooncake_overlap_summaries` in `lib/kv-router/src/services/overlap.rs`.
    """
    known = match.known_tokens // match.block_size if match.block_size else 0
    at = 0
    ends = []
    for tier in TIERS:
        for start, stop, of in sorted(match.held):
            if of == tier and start <= at < stop:
                at = min(stop, known)
        ends.append(at)
    gpu, cpu, _, remote = ends
    return Reach(gpu, cpu, remote)


DEFAULT_MODEL = "default"
"""The model of /overlap_scores where a query names none."""
MOST_WORKER = (1 << 64) - 1
NO_POOL = {"enabled": False, "total_hit_blocks": 0, "ranges": [], "error": None}
"""The entry about Dynamo's shared cache, in the answer of a router that has none."""


class Overlaps:
    """Answers /query and /overlap_scores: as Dynamo does, but for what docs/guides/coming-from.md has.

    Source: ai-dynamo 1.6.1, `lib/kv-router/src/services/indexer/server.rs` and
    `lib/kv-router/src/services/selection`; tests compare the answers with its own processes'.
    """

    def __init__(self, holdings: Holdings, most_tokens: int) -> None:
        self._holdings = holdings
        self._most_tokens = most_tokens

    async def query(self, raw: bytes, timeout: float, patience: float) -> bytes:
        """Answer /query: matched tokens by instance, rank and tier. A pod's id names its instance.

        Raises BadRequestError, UnknownModelError, and NoPodError where no pod serves the model.
        """
        found = await self._find(await parse(raw, self._most_tokens), timeout, patience)
        scores: dict[str, dict[str, int]] = {}
        instances: dict[str, dict[str, Any]] = {}
        for rank, reach, block_size in _reaches(found):
            if not reach.disk:
                continue
            number = str(rank.number)
            tokens = Reach(*(blocks * block_size for blocks in reach))
            if tokens.gpu:
                scores.setdefault(rank.pod, {})[number] = tokens.gpu
            nothing = {"longest_matched": 0, "gpu": 0, "dp": {}, "cpu": 0, "disk": 0}
            best = instances.setdefault(rank.pod, nothing)
            best["dp"][number] = tokens.gpu
            for tier, count in tokens._asdict().items():
                best[tier] = max(best[tier], count)
            best["longest_matched"] = best["disk"]
        # Dynamo leaves the frequencies empty too.
        answer = {"scores": scores, "frequencies": [], "instances": instances}
        return msgspec.json.encode(answer)

    async def overlap_scores(self, raw: bytes, timeout: float, patience: float) -> bytes:
        """Answer /overlap_scores: matched blocks of each worker. Pods' ids must be workers' numbers.

        Raises the errors of `query`, and BadRequestError if the model's pods differ in block size or
        have ids that are no numbers.
        """
        prompt = await parse(raw, self._most_tokens, DEFAULT_MODEL)
        found = await self._find(prompt, timeout, patience)
        forms = {rank.layout.form for pod in found.pods for rank in pod.ranks} - {UNKNOWN}
        if len(forms) > 1:
            raise BadRequestError(
                "model_name", "has pods with blocks of different sizes; use /query"
            )
        block_size, lookahead = next(iter(forms), UNKNOWN)
        workers = [
            {
                "worker_id": _worker(rank.pod),
                "dp_rank": rank.number,
                "device_blocks": reach.gpu,
                "host_pinned_blocks": reach.cpu,
                "disk_blocks": reach.disk,
                "host_pinned_extension_blocks": reach.cpu - reach.gpu,
                "disk_extension_blocks": reach.disk - reach.cpu,
                "shared_beyond_device_blocks": None,
            }
            for rank, reach, _ in _reaches(found)
        ]
        tokens = found.prompt.tokens - bool(lookahead)
        answer = {
            "block_size": block_size,
            "num_blocks": tokens // block_size if block_size else 0,
            "workers": workers,
            "shared_cache": NO_POOL,
        }
        return msgspec.json.encode(answer)

    async def _find(self, prompt: pb.Prompt, timeout: float, patience: float) -> HeldBlocks:
        try:
            found = await self._holdings.find(prompt, timeout, patience)
        except (BadRequestError, UnknownModelError) as error:
            raise error.renamed(FIELDS) from error
        if not found.pods:
            raise NoPodError(f"no pod serves the model {found.prompt.model!r}")
        return found


def _reaches(found: HeldBlocks) -> Iterator[tuple[Rank, Reach, int]]:
    """Yield each rank with its reach, and its tokens per block (0 where it holds nothing)."""
    # Ranks often share one match.
    reach = cache(reach_of)
    for pod in found.pods:
        for rank in pod.ranks:
            match = found.matches.get(rank)
            yield (rank, reach(match), match.block_size) if match else (rank, Reach(), 0)


def _worker(pod: str) -> int:
    """Return the number that is a pod's id. Raises BadRequestError."""
    if pod.isascii() and pod.isdecimal() and len(pod) <= len(str(MOST_WORKER)):
        number = int(pod)
        if number <= MOST_WORKER and str(number) == pod:
            return number
    raise BadRequestError(
        "model_name",
        f"has the pod {pod!r}, whose id is no worker's number, 0 to {MOST_WORKER}; use /query",
    )


def pages(
    service: RouterService, overlaps: Overlaps, most_bytes: int, tracer: Tracer = NO_TRACER
) -> Mapping[str, Page]:
    """Return the pages by path. Calls wait, are refused, drained and counted with those of gRPC.

    A body may have `most_bytes`.
    """

    def page(name: str, answer: Callable[[bytes, float, float], Awaitable[bytes]]) -> Page:
        counted = service.answer_bytes(name, answer)

        async def respond(request: web.Request) -> web.Response:
            body = await answered(request, service.intake, name, counted)
            return web.Response(body=body, content_type="application/json")

        return answering(respond, most_bytes, tracer)

    return {
        "/query": page("query", overlaps.query),
        "/overlap_scores": page("overlap_scores", overlaps.overlap_scores),
    }
