"""Compares what an engine says of itself with the configuration, and its tokens with the router's.

Sources: `vllm:cache_config_info` and `/v1/models` of vLLM 0.32,
`/server_info` of SGLang 0.5.23 (its server arguments).

The text and the chat whose tokens are compared are fixed and say nothing of anybody; no token is shown.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from warmpath.cli.deployment.check import Answer, Check, Placed
from warmpath.client.calls import Prompt
from warmpath.client.failure import CallError
from warmpath.client.sync_client import Client
from warmpath.indexer.engines.kind import Told
from warmpath.indexer.engines.table import ENGINES
from warmpath.indexer.keys.key import pack_tokens, unpack_tokens
from warmpath.router.config.files import REFUSALS
from warmpath.router.config.schema import ModelSpec
from warmpath.router.load.engine_metrics import lines
from warmpath.router.pods.probe import REFUSES

CLOCK_SECONDS = 2.0
"""The difference of two clocks that is no fault."""


def reachable(pod: Placed, health: Answer) -> Check:
    """Check that the engine answers and accepts requests."""
    name = "engine"
    if health.status == 200:
        return pod.ok(name, f"answers at {pod.spec.address}")
    if health.status == REFUSES:
        return pod.wrong(
            name, "it refuses requests (/health answers 503)", "look at the engine's log"
        )
    if health.status:
        text = f"/health answers {health.status}"
        return pod.wrong(name, text, f"{pod.key('address')} may be another server's")
    scheme = f"{pod.key('https')} or probe.ca" if pod.spec.https else pod.key("https")
    return pod.wrong(
        name, health.problem, f"start the engine, or change {pod.key('address')} or {scheme}"
    )


def clock(pod: Placed, health: Answer) -> Check:
    """Check that the engine's clock is as ours, within CLOCK_SECONDS."""
    name, ahead = "clock", health.ahead
    if ahead is None:
        return pod.unknown(name, "its answers have no Date")
    if ahead[0] <= CLOCK_SECONDS and ahead[1] >= -CLOCK_SECONDS:
        return pod.ok(name, f"differs from this machine's by less than {CLOCK_SECONDS + 1:g} s")
    by, word = (ahead[0], "ahead of") if ahead[0] > 0 else (-ahead[1], "behind")
    text = f"it is {by:,.0f} s or more {word} this machine's"
    return pod.wrong(name, text, "synchronise both machines' clocks (NTP)")


def served(pod: Placed, models: Answer, model: ModelSpec) -> Check:
    """Check that the engine serves the pod's model under its name or an alias."""
    name = "model"
    if models.status in REFUSALS:
        text = f"/v1/models answers {models.status}, so its models and adapters are not known"
        return pod.wrong(name, text, f"{pod.key('key-file')}: a file with the engine's API key")
    names = {str(one.get("id")) for one in models.models}
    if not names:
        return pod.unknown(name, "/v1/models lists none")
    if names & {model.name, *model.aliases}:
        return pod.ok(name, f"serves {model.name}")
    said = ", ".join(sorted(names)[:4])
    return pod.wrong(
        name,
        f"it serves {said}, not {model.name}",
        f"{pod.key('model')}, or the engine's --served-model-name",
    )


def kind(pod: Placed, metrics: Answer) -> Check:
    """Check that the names of the engine's metrics are those of its configured kind."""
    name, page = "engine kind", metrics.body
    if metrics.status != 200 or not page:
        return pod.unknown(name, "/metrics cannot be read")
    found = [one for one, kind in ENGINES.items() if any(lines(page, kind.metrics.prefix))]
    if pod.spec.engine in found:
        return pod.ok(name, pod.spec.engine)
    if not found:
        return pod.unknown(name, "/metrics has no names of an engine")
    return pod.wrong(
        name,
        f"its metrics are those of {found[0]}, not of {pod.spec.engine}",
        f'{pod.key("engine")} = "{found[0]}"',
    )


def cache(pod: Placed, metrics: Answer, info: Answer, seen: Mapping[int, int]) -> Iterator[Check]:
    """Yield checks that prefix caching is on, and that ranks, blocks and block sizes are as configured.

    `seen` has the block size of each rank's events, as far as the router knows them.
    """
    engine, spec = ENGINES[pod.spec.engine], pod.spec
    told = engine.told(metrics.body, info.fields)
    if told == Told():
        yield (
            pod.unknown(
                "block size",
                f"{engine.title} does not tell it; {pod.key('block-size')} ({spec.block_size}) must be "
                "its tokens_per_block",
            )
            if engine.is_polled
            else pod.unknown(
                "prefix cache", f"neither /metrics nor {engine.version_path} tells of it"
            )
        )
        return
    if told.caches is not None:
        yield _caching(pod, is_on=told.caches, option=engine.caching_option)
    if told.block_size:
        yield _block_size(pod, told.block_size, seen)
    if told.hashes:
        yield pod.ok("block hashes", f"{told.hashes}; any algorithm and seed will do")
    if told.events and spec.events:
        yield pod.ok("events on", "the engine has --kv-events-config")
    elif told.events is not None and spec.events:
        yield pod.wrong(
            "events on", "the engine publishes no events", f"start it with {engine.events_option}"
        )
    if told.ranks:
        yield _ranks(pod, told.ranks)
    if spec.blocks and told.blocks and told.blocks != spec.blocks:
        yield pod.wrong(
            "blocks",
            f"its cache has {told.blocks:,} blocks, not {spec.blocks:,}",
            f"leave {pod.key('blocks')} out: the engine's /metrics have it",
        )


def _caching(pod: Placed, *, is_on: bool, option: str) -> Check:
    name = "prefix cache"
    if is_on:
        return pod.ok(name, "is on")
    return pod.wrong(name, "is off: the engine computes every prompt anew", f"give it {option}")


def _block_size(pod: Placed, size: int, seen: Mapping[int, int]) -> Check:
    name = "block size"
    # Groups of a hybrid model have blocks of several sizes, which are multiples of each other.
    other = [of for of in seen.values() if of and of % size and size % of]
    if other:
        return pod.wrong(
            name,
            f"the engine says {size} tokens, its events say {other[0]}",
            f"{pod.key('address')} and {pod.key('events')} are of two engines",
        )
    known = [of for of in seen.values() if of]
    return pod.ok(name, f"{size} tokens{'' if known else '; its events have not shown theirs yet'}")


def _ranks(pod: Placed, found: Sequence[int]) -> Check:
    spec = pod.spec
    wanted = list(range(spec.first_rank, spec.first_rank + spec.ranks))
    if list(found) == wanted or len(found) == spec.ranks == 1:
        return pod.ok("ranks", f"{spec.ranks}")
    return pod.wrong(
        "ranks",
        f"the engine has {len(found)}, from {found[0]} on; the configuration has {spec.ranks}, from "
        f"{spec.first_rank} on",
        f"{pod.key('ranks')} = {len(found)}, {pod.key('first-rank')} = {found[0]}",
    )


TEXT = (
    "A deployment is checked.\n\nNaïve cafés serve 1,234.5 cups — \tfive at a time; 日本語 too. 🙂\n"
    "def f(x):\n    return x  # 007\n"
)
"""Words, numbers, spaces, signs beyond ASCII and code: tokenizers differ in these."""
CHAT = [
    {"role": "system", "content": "You are a check."},
    {"role": "user", "content": TEXT},
    {"role": "assistant", "content": "Fine."},
    {"role": "user", "content": "Again?"},
]
Form = Literal["text", "chat"]
FORMS: Mapping[Form, str] = {"text": "tokenizer", "chat": "chat template"}
"""The forms of the prompt, and what makes tokens of each."""


class Ours(NamedTuple):
    """The router's tokens of one form; `problem` says why there are none."""

    ids: bytes = b""
    problem: str = ""
    is_down: bool = False
    """Whether the problem is the tokenizer's or the template's."""


def body(model: str, form: Form) -> dict[str, Any]:
    """Return the body of a request to an engine's /tokenize, with TEXT or CHAT."""
    content = {"prompt": TEXT} if form == "text" else {"messages": CHAT}
    return {"model": model, **content}


def ask_router(client: Client, model: str, form: Form) -> Ours:
    """Return the router's own tokens of TEXT or CHAT."""
    prompt = Prompt(text=TEXT, model=model)
    if form == "chat":
        chat = {"model": model, "messages": CHAT}
        prompt = Prompt(chat_body=json.dumps(chat).encode(), model=model)
    try:
        explained = client.score(prompt, explain=True).explanation
    except CallError as error:
        is_down = error.code.name in ("UNAVAILABLE", "INTERNAL", "DEADLINE_EXCEEDED")
        return Ours(problem=error.message, is_down=is_down)
    return Ours(explained.token_ids_packed)


def tokenizer(model: ModelSpec, ours: Mapping[Form, Ours]) -> list[Check]:
    """Check that the router makes tokens of a model's texts and chats; no checks without a tokenizer."""
    source, checks = _source(model), []
    for form, one in ours.items() if source else ():
        subject, name = f"model {model.name}", FORMS[form]
        if one.is_down:
            checks.append(Check(subject, name, "WRONG", one.problem, source))
        elif one.problem:
            checks.append(Check(subject, name, "not known", one.problem))
        else:
            checks.append(Check(subject, name, "ok", f"makes tokens of a {form}"))
    return checks


def compare(pod: Placed, model: ModelSpec, form: Form, ours: Ours, answer: Answer) -> Check | None:
    """Check that an engine's tokens are the router's; None if the router has none."""
    name = FORMS[form]
    if not _source(model) or ours.problem:
        return None
    ids = answer.fields.get("tokens")
    try:
        theirs = pack_tokens(ids if isinstance(ids, list) else [])
    except (ValueError, TypeError, OverflowError):
        theirs = b""
    if not theirs:
        said = answer.problem or f"/tokenize answers {answer.status} without tokens of a {form}"
        return pod.unknown(name, said)
    if theirs == ours.ids:
        return pod.ok(name, f"a {form} has the router's {len(theirs) // 4} tokens")
    change = _source(model)
    if form == "chat":
        change = f"the template in the folder of {change}, or the engine's --chat-template"
    text = f"the {form} of this check has {_difference(ours.ids, theirs)}"
    return pod.wrong(name, text, change)


def _difference(ours: bytes, theirs: bytes) -> str:
    mine, other = unpack_tokens(ours), unpack_tokens(theirs)
    pairs = zip(mine, other, strict=False)
    at = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(mine), len(other)))
    return f"{len(other)} tokens there and {len(mine)} here; token {at} is the first to differ"


def _source(model: ModelSpec) -> str:
    table = f"models ({model.name})"
    if model.tokenizer:
        return f"{table}.tokenizer = {json.dumps(model.tokenizer)}"
    if model.hub.repo:
        return f"{table}.hub.repo = {json.dumps(model.hub.repo)}"
    return f"{table}.tokenizer-urls" if model.tokenizer_urls else ""
