"""How much of a prompt each pod holds, as the router's Score answers it; reads prompts for that."""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from warmpath.client.calls import AnyPrompt, Prompt, check_arguments, prompt_of
from warmpath.indexer.believed import Believed
from warmpath.indexer.keys.key import TOKEN_BYTES, pack_tokens
from warmpath.indexer.rank import Rank
from warmpath.indexer.trust import Level, Trust
from warmpath.library.index import Index
from warmpath.router.match.match import Matches
from warmpath.router.match.match import Scorer as Matcher
from warmpath.router.pods.namespaces import asked
from warmpath.router.pods.table import Pod
from warmpath.router.prompt.limits import BadRequestError, check_count, check_item, check_name
from warmpath.router.prompt.token_prompt import ReadPrompt, TokenPrompt
from warmpath.scorer.match import NOTHING, TIERS
from warmpath.scorer.strategies import DEFAULT, STRATEGIES

Tokenizer = str | Path | Callable[[str], Sequence[int]]
"""A model's folder with its tokenizer.json, or a function from a text to its token ids."""

EXTRA = "the extra `router` (pip install 'warmpath-router[router]')"
"""The extra that has the package of tokenizers."""


class PromptReader:
    """Reads prompts of one model; a text needs a `tokenizer`. One of a folder adds special tokens.

    Raises ValueError for a folder without a tokenizer that can be used.
    """

    def __init__(self, model: str, tokenizer: Tokenizer | None) -> None:
        self._model = model
        self._encode: Callable[[str], bytes] | None = None
        if isinstance(tokenizer, str | Path):
            self._encode = _encoder_of(Path(tokenizer))
        elif tokenizer is not None:
            self._encode = lambda text: pack_tokens(tokenizer(text))

    def read(self, given: AnyPrompt) -> ReadPrompt:
        """Return a prompt with its tokens. Raises ValueError, which names the field at fault."""
        prompt = prompt_of(given)
        if prompt.model not in ("", self._model):
            raise ValueError(f"model: is {prompt.model!r}; the index has {self._model!r}")
        text = prompt.text
        ids = prompt.packed_tokens() if text is None else self._tokenised(text)
        if not ids:
            raise ValueError("tokens: are none; at least one is needed")
        try:
            for name in ("lora", "cache_salt", "extra_key"):
                check_name(name, getattr(prompt, name))
            _check_items(prompt, len(ids) // TOKEN_BYTES)
        except BadRequestError as error:
            raise ValueError(str(error)) from None
        read = TokenPrompt(
            model=self._model, ids=ids, lora=prompt.lora, cache_salt=prompt.cache_salt,
            extra_key=prompt.extra_key, items=tuple(prompt.items),
        )  # fmt: skip
        if text is None:
            return ReadPrompt(read, covered_chars=0, form="ids")
        return ReadPrompt(read, covered_chars=len(text), form="text")

    def _tokenised(self, text: str) -> bytes:
        if self._encode is None:
            raise ValueError("text: needs a tokenizer; give one, or token ids")
        return self._encode(text)


def _encoder_of(folder: Path) -> Callable[[str], bytes]:
    # Imported here, since a caller with token ids needs no package of tokenizers.
    try:
        from warmpath.prefixstore.tokenizers.tokenizer import (  # noqa: PLC0415
            FolderTokenizer,
            InvalidTextError,
            TokenizerUnavailableError,
            check_text,
        )
    except ModuleNotFoundError as error:
        raise ValueError(f"tokenizer: needs {EXTRA}: {error}") from error
    try:
        tokenizer = FolderTokenizer(folder)
    except TokenizerUnavailableError as error:
        raise ValueError(f"tokenizer: {error}") from error

    def encode(text: str) -> bytes:
        try:
            [ids] = tokenizer.encode([check_text(text)], at_start=True)
        except (InvalidTextError, TokenizerUnavailableError) as error:
            raise ValueError(f"text: {error}") from error
        return tokenizer.prefix + ids + tokenizer.suffix

    return encode


def _check_items(prompt: Prompt, tokens: int) -> None:
    check_count("items", len(prompt.items))
    end = 0
    for position, item in enumerate(prompt.items):
        end = check_item(f"items[{position}]", item, begin=end, tokens=tokens)


UNKNOWN_POD = "no such pod serves the model"
"""The reason why a pod that the index does not have is cold."""


@dataclass(frozen=True, slots=True)
class PodScore:
    """How much of a prompt one rank of a pod holds."""

    pod: str
    rank: int
    score: float
    """In the strategy's unit, tokens for all but `tiered`; higher is warmer."""
    matched_tokens: int
    """Leading tokens that a request would find cached; at most all but the last one."""
    believed_tokens: int
    """The part of `matched_tokens` that no event has announced."""
    tiers: Mapping[str, int]
    """Leading tokens by tier; a block in two tiers counts in the faster one."""
    trust: Trust
    """How far this may be believed, why, and since when by the index's clock."""
    ready: bool
    """Whether the pod's events arrive, or it has none."""


class Scorer:
    """Scores prompts by what an index holds. Thread-safe; threads that use one scorer take turns.

    `strategy` is longest-prefix, highest-block, coverage or tiered. `shared_tiers` are tiers that all
    pods share. A `tokenizer` is needed for texts. `believed` are the blocks of requests that were just
    placed, and that no event has announced yet: `Picker.scorer` has them.

    >>> index = Index("demo")
    >>> index.feed("pod-1", [Stored.of([11, 12], range(32), block_size=16)])
    >>> [(one.pod, one.matched_tokens) for one in Scorer(index).score(range(40))]
    [('pod-1', 32)]
    """

    def __init__(
        self,
        index: Index,
        *,
        strategy: str = DEFAULT,
        shared_tiers: Collection[str] = (),
        tokenizer: Tokenizer | None = None,
        believed: Believed | None = None,
    ) -> None:
        """Begin. Raises ValueError for an unknown strategy or tier, or a tokenizer of no use."""
        if strategy not in STRATEGIES:
            raise ValueError(f"strategy is {strategy!r}; it must be one of {', '.join(STRATEGIES)}")
        if not set(shared_tiers) <= set(TIERS):
            raise ValueError(
                f"shared_tiers are {shared_tiers!r}; they must be of {', '.join(TIERS)}"
            )
        self.index = index
        self.reader = PromptReader(index.model, tokenizer)
        self.matcher = Matcher(
            index.ingest, "", believed=believed, shared_tiers={index.model: frozenset(shared_tiers)}
        )
        self.lock = threading.Lock()
        """The lock of the matcher and of the beliefs."""
        self._strategy = STRATEGIES[strategy]
        self._believed = believed

    def score(self, prompt: AnyPrompt, *, pods: Sequence[str] = ()) -> list[PodScore]:
        """Return the score of every rank of every pod; only of `pods`, unless that is empty.

        A pod that the index does not have scores 0, cold. Raises ValueError, which names the field of
        the prompt at fault.
        """
        check_arguments(pods=pods)
        read = self.reader.read(prompt)
        self.index.pass_time()
        with self.lock:
            if self._believed is not None:
                self._believed.expire(self.index.clock())
            named, unknown = self._named(pods)
            ranks = [rank for pod in named for rank in pod.ranks]
            placed = read.apart(pod.engine for pod in named)
            asked(placed, named)
            matches = self.matcher.matches(placed, ranks, self._strategy)
        found = [self._score(pod, rank, matches) for pod in named for rank in pod.ranks]
        cold = Trust(Level.COLD, UNKNOWN_POD, 0.0)
        return found + [PodScore(one, 0, 0.0, 0, 0, {}, cold, ready=False) for one in unknown]

    def _named(self, names: Sequence[str]) -> tuple[list[Pod], list[str]]:
        """Return the pods of these names, all pods if there are none, and the names without a pod."""
        known = self.index.table.of_model(self.index.model)
        if not names:
            return known, []
        by_id = {pod.id: pod for pod in known}
        wanted = dict.fromkeys(names)
        found = [by_id[name] for name in wanted if name in by_id]
        return found, [name for name in wanted if name not in by_id]

    def _score(self, pod: Pod, rank: Rank, matches: Matches) -> PodScore:
        match = matches.get(rank, NOTHING)
        return PodScore(
            pod.id, rank.number, self._strategy(match) if rank in matches else 0.0,
            match.matched_tokens, match.believed_tokens, match.tokens_by_tier,
            matches.trust(rank), pod.ready,
        )  # fmt: skip
