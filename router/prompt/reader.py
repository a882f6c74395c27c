"""Reads a prompt of any form, ids, text or chat: parses it, then has texts and chats tokenised."""

import asyncio

from warmpath.prefixstore.chats.render_worker import RenderCrashedError, RenderTimeoutError
from warmpath.prefixstore.tokenizers.tokenizer import TokenizerUnavailableError
from warmpath.prefixstore.waiting import ClosedError, FullError
from warmpath.router.prompt.bad_request import NoTokenizerError
from warmpath.router.prompt.limits import PromptLimits
from warmpath.router.prompt.parse import LONG, AnyPrompt, PromptParser
from warmpath.router.prompt.plain import PlainPrompt
from warmpath.router.prompt.prompt import CheckedPrompt
from warmpath.router.prompt.read_prompt import ReadPrompt
from warmpath.router.prompt.texts import Texts
from warmpath.router.prompt.token_prompt import TokenPrompt
from warmpath.router.prompt.tokenise import Ids, Tokeniser, reckoned
from warmpath.router.prompt.trace import Trace
from warmpath.router.tracing.steps import NO_STEPS, Step, Steps

UNREAD = (
    ClosedError,
    FullError,
    NoTokenizerError,
    RenderCrashedError,
    RenderTimeoutError,
    TokenizerUnavailableError,
)
"""Errors that mean that a text cannot be tokenised now, whatever its content."""


class PromptReader:
    """Reads prompts of all forms."""

    def __init__(self, texts: Texts, limits: PromptLimits, steps: Steps = NO_STEPS) -> None:
        self._steps = steps
        self._untokenised: dict[tuple[str, str], str] = {}
        """By model and field, why nothing configured could tokenise the last prompt."""
        self._tokeniser = Tokeniser(texts.tokenizers, texts.renderer, texts.pool, limits)
        self._parser = PromptParser(texts.models, limits, self._tokeniser.vocab_size)

    def troubles(self) -> dict[str, str]:
        """Return the models whose texts or chats could not be tokenised last time, with the reasons."""
        asked = {model: reason for (model, _), reason in self._untokenised.items()}
        return asked | self._tokeniser.troubles()

    async def read(
        self,
        message: AnyPrompt | PlainPrompt,
        timeout: float,
        trace: Trace | None = None,
        *,
        may_reckon: bool = False,
    ) -> ReadPrompt:
        """Read a prompt; a chat is rendered and text tokenised for at most `timeout` seconds.

        Raises BadRequestError and UnknownModelError; TokenizerUnavailableError if the model's tokenizer
        is unavailable; the errors of a pool or renderer that is full or closed; RenderTimeoutError and
        RenderCrashedError. If the time is over while the tokenizer is still being loaded, no error is
        raised: there are no tokens, and the whole text is unread. With `may_reckon` the same holds
        instead of each error in UNREAD, and a prompt without content has no tokens.
        """
        if isinstance(message, PlainPrompt):
            read = self.read_plain(message)
            if trace:
                trace.step("read the request")
            if len(message.ids) > LONG:
                await asyncio.sleep(0)
            return read
        begun = self._steps.begin()
        prompt = await self._parser.parse(message, may_lack=may_reckon)
        self._steps.took(Step.READ, begun)
        if trace:
            trace.step("read the request")
        model, because = prompt.model.name, ""
        try:
            found = await self._tokens(prompt, timeout, trace)
            self._untokenised.pop((model, prompt.field), None)
        except UNREAD as error:
            # A traced request is somebody's look, whose failure says nothing of the traffic.
            if isinstance(error, NoTokenizerError) and trace is None:
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

    def read_plain(self, prompt: PlainPrompt) -> ReadPrompt:
        """Read a prompt of token ids. Raises BadRequestError and UnknownModelError."""
        model, adapter = self._parser.plain(prompt)
        return ReadPrompt(TokenPrompt(model.name, prompt.ids, adapter), 0)

    async def _tokens(self, prompt: CheckedPrompt, timeout: float, trace: Trace | None) -> Ids:
        if isinstance(prompt.content, bytes):
            return await self._tokeniser.tokens(prompt, timeout, trace)
        with self._steps.step(Step.TOKENISE):
            return await self._tokeniser.tokens(prompt, timeout, trace)
