"""Answers Dynamo's queries for overlaps: JSON with the prompt's token ids.

Dynamo's unit: leading blocks in the fastest tier, and how far each slower tier extends them.
"""

from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import msgspec

from warmpath.indexer.rank import Rank
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.calls.score import Answerer, HeldBlocks
from warmpath.router.calls.service import RouterService
from warmpath.router.match.forms import UNKNOWN
from warmpath.router.pages.listener import Page, call_page
from warmpath.router.pick.eligible import NoPodError
from warmpath.router.prompt.bodies.fields import MOST_VALUES, FieldError, RawFields, raw_fields
from warmpath.router.prompt.limits import BadRequestError
from warmpath.router.prompt.models import UnknownModelError
from warmpath.router.tracing.steps import NO_TRACER, Tracer
from warmpath.scorer.match import TIERS, Match


class Reach(NamedTuple):
    """Leading blocks of a prompt to the end of each tier; a number includes the one before it."""

    gpu: int = 0
    cpu: int = 0
    disk: int = 0
    """The leading blocks to the end of the disk and remote tiers."""


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
    """Answers /query and /overlap_scores as Dynamo does; docs/guides/coming-from.md lists differences.

    Source: ai-dynamo 1.6.1, `lib/kv-router/src/services/indexer/server.rs` and
    `lib/kv-router/src/services/selection`; tests compare the answers with its own processes'.
    """

    def __init__(self, answerer: Answerer, most_tokens: int) -> None:
        self._answerer = answerer
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
            found = await self._answerer.held_blocks(prompt, timeout, patience)
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

    A body may have at most `most_bytes`.
    """
    answers = {"query": overlaps.query, "overlap_scores": overlaps.overlap_scores}
    return {
        f"/{name}": call_page(
            service.intake, name, service.answer_bytes(name, answer), most_bytes, tracer
        )
        for name, answer in answers.items()
    }


TEXTS = ("model_name", "routing_group", "lora_name", "cache_salt")
HASHES = ("block_hashes", "sequence_hashes")
ITEMS = ("block_mm_infos", "mm_routing_info")
FIELDS = {
    "prompt.token_ids_packed": "token_ids",
    "prompt.model": "model_name",
    "prompt.lora": "lora_name",
    "prompt.cache_salt": "cache_salt",
}
"""The query's fields, for errors, by the fields of the prompt that is made of them."""
GROUP = "default"
"""The routing group of a query that names none; the router has no other."""
NO_HASHES = (
    "is not supported: the index has keys of its own, which do not follow from Dynamo's hashes; "
    "send token_ids"
)
NO_ITEMS = "is not supported: Dynamo's hashes of items are not the engine's"


async def parse(raw: bytes, most_tokens: int, model: str = "") -> pb.Prompt:
    """Return a query's prompt of at most `most_tokens` ids; `model` is for a query that names none.

    Fields that are not known are ignored, as by Dynamo. Raises BadRequestError.
    """
    try:
        names = ("token_ids", *TEXTS, *HASHES, *ITEMS)
        fields = await raw_fields(raw, names, MOST_VALUES + most_tokens)
        given = {name for name in names if fields.has(name)}
        _refuse_unsupported(given)
        ids = await _ids(fields, most_tokens)
        texts = {name: await _text(fields, name) for name in TEXTS if name in given}
    except FieldError as error:
        raise BadRequestError(error.field or "body", error.problem) from error
    if texts.get("routing_group", GROUP) != GROUP:
        raise BadRequestError("routing_group", f"is not {GROUP!r}: a router has no groups of pods")
    return pb.Prompt(
        model=texts.get("model_name", model),
        token_ids_packed=ids,
        lora=texts.get("lora_name", ""),
        cache_salt=texts.get("cache_salt", ""),
    )


def _refuse_unsupported(given: Collection[str]) -> None:
    for name in ITEMS:
        if name in given:
            raise FieldError(NO_ITEMS, name)
    if "token_ids" in given:
        return
    for name in HASHES:
        if name in given:
            raise FieldError(NO_HASHES, name)
    raise FieldError("is missing", "token_ids")


async def _ids(fields: RawFields, most: int) -> bytes:
    if (packed := await fields.ids("token_ids", most)) is None:
        raise FieldError("is not a list of integers", "token_ids")
    return packed


async def _text(fields: RawFields, name: str) -> str:
    value = await fields.decoded(name)
    if not isinstance(value, str):
        raise FieldError("is not a string", name)
    return value
