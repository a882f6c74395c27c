"""From a request's prompt to the tokens that engines cache."""

import msgspec

from prefixstore.chats.renderer import RenderCrashedError, RendererFullError, RenderTimeoutError
from prefixstore.pool import PoolFullError
from prefixstore.tokenizers.tokenizer import TokenizerUnavailableError
from router.prompt.assemble import Texts
from router.prompt.bad_request import NoTokenizerError
from router.prompt.bounds import Limits
from router.prompt.parse import AnyPrompt, PromptParser
from router.prompt.prompt import Form
from router.prompt.token_prompt import TokenPrompt
from router.prompt.tokenise import Tokeniser, reckoned
from router.prompt.trace import Trace

UNREAD = (
    NoTokenizerError,
    PoolFullError,
    RenderCrashedError,
    RenderTimeoutError,
    RendererFullError,
    TokenizerUnavailableError,
)
"""Errors of a text that cannot be tokenised now, whatever it says."""


class ReadPrompt(msgspec.Struct, frozen=True):
    """A prompt, read."""

    prompt: TokenPrompt
    covered_chars: int
    """Characters of the text that the tokens cover; 0 for token ids, and for a chat that the engine
    rendered."""
    lora_path: str = ""
    """The adapter that a body names as SGLang takes it."""
    unread: int = 0
    """Tokens, as reckoned, of what is left of a text that was not tokenised."""
    unread_because: str = ""
    form: Form = "ids"
    """The form that it came in."""


class PromptReader:
    """Reads prompts of all forms."""

    def __init__(self, texts: Texts, limits: Limits) -> None:
        self._untokenised: dict[tuple[str, str], str] = {}
        """By model and field, why nothing that is configured tokenised the last prompt."""
        self._tokeniser = Tokeniser(texts.tokenizers, texts.renderer, texts.pool, limits)
        self._parser = PromptParser(texts.models, limits, self._tokeniser.vocab_size)

    def troubles(self) -> dict[str, str]:
        """Return by model why its texts or chats cannot be tokenised, as it was last time."""
        asked = {model: reason for (model, _), reason in self._untokenised.items()}
        return asked | self._tokeniser.troubles()

    async def read(
        self,
        message: AnyPrompt,
        timeout: float,
        trace: Trace | None = None,
        *,
        may_reckon: bool = False,
    ) -> ReadPrompt:
        """Read a prompt; a chat is rendered and text tokenised for at most `timeout` seconds.

        Raises BadRequestError and UnknownModelError, TokenizerUnavailableError where the model's
        tokenizer cannot be had, what the pool and the renderer raise where they are full or closed, and
        RenderTimeoutError and RenderCrashedError. A tokenizer that is still being loaded when the time
        is over is as one that has not come to the text: no token is known. With `may_reckon` that is so
        too wherever a text cannot be tokenised now, instead of the errors that say so.
        """
        prompt = await self._parser.parse(message)
        if trace:
            trace.step("read the request")
        model, because = prompt.model.name, ""
        try:
            found = await self._tokeniser.tokens(prompt, timeout, trace)
            self._untokenised.pop((model, prompt.field), None)
        except UNREAD as error:
            if isinstance(error, NoTokenizerError):
                self._untokenised[model, prompt.field] = str(error)
            if not may_reckon:
                raise
            found, because = reckoned(prompt), str(error)
        if found.unread and not because:
            because = "the text was not tokenised in time"
        return ReadPrompt(
            TokenPrompt(
                model=model,
                ids=found.packed,
                lora=prompt.adapter,
                cache_salt=prompt.cache_salt,
                extra_key=prompt.extra_key,
                items=prompt.items,
                reads_cache=prompt.reads_cache,
                memo=found.memo,
            ),
            found.covered_chars,
            lora_path=prompt.lora_path,
            unread=found.unread,
            unread_because=because,
            form=prompt.form,
        )
