"""Reads a prompt of any form: parses it, renders a chat and has texts tokenised, in a caller's time.

A `Trace` records the steps for callers that ask (`warmpath score --explain`). One file, since every
form shares the caller's time and the steps.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from warmpath.indexer.keys.key import TOKEN_BYTES
from warmpath.prefixstore.chats.jinja_template import TemplateError
from warmpath.prefixstore.chats.render_worker import RenderCrashedError, RenderTimeoutError
from warmpath.prefixstore.chats.renderer import BrokenTemplateError
from warmpath.prefixstore.pool import Tokens
from warmpath.prefixstore.tokenizers.remote import EngineTokenizer, chat_text
from warmpath.prefixstore.tokenizers.tokenizer import (
    InvalidTextError,
    LongPieceError,
    Tokenizer,
    TokenizerUnavailableError,
)
from warmpath.prefixstore.workers import ClosedError, FullError
from warmpath.process.loop import tasked
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.prompt.bodies.fields import RawFields
from warmpath.router.prompt.bodies.openai import ChatBody, Text
from warmpath.router.prompt.bodies.written import written
from warmpath.router.prompt.limits import BadRequestError, NoTokenizerError, PromptLimits, TimeLeft
from warmpath.router.prompt.models import Model
from warmpath.router.prompt.parse import LONG, AnyPrompt, CheckedPrompt, PromptParser
from warmpath.router.prompt.plain import PlainPrompt
from warmpath.router.prompt.texts import Texts
from warmpath.router.prompt.token_prompt import Blind, ReadPrompt, TokenPrompt, blinded
from warmpath.router.prompt.truncate import Ids, cut_between, estimate, fits, truncated
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


BEFORE_MESSAGES = ("tools", "chat_template_kwargs")
"""The fields of a chat request that most templates write before all messages."""


class Trace:
    """Records one prompt's steps; `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last = clock()
        self._steps: list[pb.Step] = []
        self._text = ""
        self._tokens: Tokens | None = None
        self._ends: Sequence[int] = ()

    def step(self, name: str) -> None:
        """Record the end of a step that began when the last one ended."""
        now = self._clock()
        self._steps.append(pb.Step(name=name, seconds=now - self._last))
        self._last = now

    def tokenised(self, text: str, tokens: Tokens) -> None:
        """Record a text and its tokens; the text is empty if an engine rendered it."""
        self._text, self._tokens = text, tokens

    async def find_ends(self, tokenizer: Tokenizer) -> None:
        """Record where in the text each token ends, if `tokenizer` can tell."""
        tell = getattr(tokenizer, "token_ends", None)
        if tell and self._tokens and self._tokens.covered_chars == len(self._text):
            self._ends = await asyncio.to_thread(tell, self._text, self._tokens.ids)

    def explanation(self, ids: bytes) -> pb.Explanation:
        """Return the recorded explanation; `ids` are the prompt's tokens, packed."""
        explanation = pb.Explanation(text=self._text, token_ids_packed=ids, steps=self._steps)
        if self._tokens:
            explanation.stored_chars = min(self._tokens.stored_chars, len(self._text))
            explanation.stored_tokens = self._tokens.stored_tokens
            if memo := self._tokens.memo:
                explanation.stored_keys, explanation.keys = memo.stored_keys, memo.known_keys
            if ids == self._tokens.ids:
                explanation.token_ends.extend(self._ends)
        return explanation


class _Task(msgspec.Struct, frozen=True):
    """A prompt, the time left for it, and the trace of its steps."""

    prompt: CheckedPrompt
    left: TimeLeft
    trace: Trace | None

    def step(self, name: str) -> None:
        if self.trace:
            self.trace.step(name)

    def refused(self, problem: str) -> BadRequestError:
        """Return the error for a `truncate_prompt_tokens` that cannot be honoured."""
        body = self.prompt.field.removesuffix(".prompt")
        return BadRequestError(f"{body}.truncate_prompt_tokens", problem)


class PromptReader:
    """Reads prompts of all forms."""

    def __init__(self, texts: Texts, limits: PromptLimits, steps: Steps = NO_STEPS) -> None:
        self._texts = texts
        self._limits = limits
        self._steps = steps
        self._untokenised: dict[tuple[str, str], str] = {}
        """By model and field, why nothing configured could tokenise the last prompt."""
        self._troubles: dict[tuple[str, str], str] = {}
        """By model and field, why the tokenizer failed at the last attempt; traced ones aside."""
        self._parser = PromptParser(texts.models, limits, self._vocab_size)

    def troubles(self) -> dict[str, str]:
        """Return the models whose texts or chats could not be tokenised last time, with the reasons."""
        asked = {model: reason for (model, _), reason in self._untokenised.items()}
        unavailable = {model: reason for (model, _), reason in self._troubles.items()}
        return asked | self._texts.tokenizers.failures() | unavailable

    async def read(
        self,
        message: AnyPrompt | PlainPrompt,
        timeout: float,
        trace: Trace | None = None,
        *,
        may_reckon: bool = False,
        fields: RawFields | None = None,
    ) -> ReadPrompt:
        """Read a prompt; a chat is rendered and text tokenised for at most `timeout` seconds.

        `fields` are those of its body, if they are known.

        Raises BadRequestError and UnknownModelError; TokenizerUnavailableError if the model's tokenizer
        is unavailable; the errors of a pool or renderer that is full or closed; RenderTimeoutError and
        RenderCrashedError. If the time is over while the tokenizer is still being loaded, no error is
        raised: there are no tokens, and the whole text is unread. With `may_reckon` the same holds
        instead of each error in UNREAD, a prompt without content has no tokens, and bytes of a text of
        which no token is known stand in (`TokenPrompt.is_blind`).
        """
        if isinstance(message, PlainPrompt):
            read = self.read_plain(message)
            if trace:
                trace.step("read the request")
            if len(message.ids) > LONG:
                await asyncio.sleep(0)
            return read
        begun = self._steps.begin()
        prompt = await self._parser.parse(message, may_lack=may_reckon, fields=fields)
        self._steps.took(Step.READ, begun)
        if trace:
            trace.step("read the request")
        model, because = prompt.model.name, ""
        blind: Blind | None = None
        try:
            found = await self._tokens(prompt, timeout, trace)
            self._untokenised.pop((model, prompt.field), None)
        except UNREAD as error:
            # A traced request is somebody's look, whose failure says nothing of the traffic.
            if isinstance(error, NoTokenizerError) and trace is None:
                self._untokenised[model, prompt.field] = str(error)
            if not may_reckon:
                raise
            found, because, blind = _estimated(prompt), str(error), _lacking(error)
        if found.unread and not because:
            because = "the text was not tokenised in time"
            blind = None if found.packed else "time"
        tokens = TokenPrompt(
            model=model,
            ids=found.packed,
            lora=prompt.adapter,
            cache_salt=prompt.cache_salt,
            extra_key=prompt.extra_key,
            items=prompt.items,
            reads_cache=prompt.reads_cache,
            memo=found.memo,
        )
        # Which end the engine would cut off is known in tokens only.
        may_blind = may_reckon and prompt.truncation is None
        if may_blind and (blind or (not found.unread and self._may_be_late(prompt))):
            raw = _bytes_of(prompt)
            text = raw[: self._limits.max_prompt_tokens * TOKEN_BYTES]
            if blind:
                found = found._replace(unread=-(-len(raw) // TOKEN_BYTES))
                tokens = blinded(tokens, text)
            else:
                tokens = replace(tokens, text=text)
        return ReadPrompt(
            tokens,
            found.covered_chars,
            lora_path=prompt.lora_path,
            unread=found.unread,
            unread_because=because,
            blind=blind,
            form=prompt.form,
            session=prompt.session,
        )

    def read_plain(self, prompt: PlainPrompt) -> ReadPrompt:
        """Read a prompt of token ids at once. Raises BadRequestError and UnknownModelError."""
        model, adapter = self._parser.plain(prompt)
        return ReadPrompt(TokenPrompt(model.name, prompt.ids, adapter), 0)

    def _may_be_late(self, prompt: CheckedPrompt) -> bool:
        """Return whether only engines tokenise the prompt, and may not do so in time the next time."""
        if isinstance(prompt.content, bytes):
            return False
        tokenizer = self._texts.tokenizers.held(prompt.model.tokenizer)
        return isinstance(tokenizer, EngineTokenizer) and tokenizer.is_alone

    def _vocab_size(self, model: Model) -> int:
        return model.vocab_size or self._texts.tokenizers.vocab_size(model.tokenizer)

    async def _tokens(self, prompt: CheckedPrompt, timeout: float, trace: Trace | None) -> Ids:
        content = prompt.content
        if isinstance(content, bytes):
            return truncated(Ids(content), prompt.truncation)
        task = _Task(prompt, TimeLeft(timeout), trace)
        with self._steps.step(Step.TOKENISE):
            if isinstance(content, ChatBody):
                return await self._chat(content, task)
            return await self._text(content.text, task, special=content.add_special_tokens)

    async def _text(
        self, text: str, task: _Task, *, special: bool, tokenizer: Tokenizer | None = None
    ) -> Ids:
        """Return a text's tokens; `special` says whether special tokens are added around them."""
        model, field = task.prompt.model, task.prompt.field
        if not text:
            raise BadRequestError(field, "is empty; at least one character is needed")
        tokenizer = tokenizer or await self._tokenizer(task)
        if tokenizer is None:
            return Ids(b"", unread=estimate(text))
        try:
            found = await self._encode(model.tokenizer, tokenizer, text, task, special=special)
        except LongPieceError as error:
            raise NoTokenizerError(field, str(error)) from error
        except InvalidTextError as error:
            raise BadRequestError(field, str(error)) from error
        except TokenizerUnavailableError as error:
            raise self._unavailable(task, error) from error
        if task.trace:
            task.trace.tokenised(text, found)
            await task.trace.find_ends(tokenizer)
        ids = Ids(found.ids, found.covered_chars, found.memo, estimate(text, found.covered_chars))
        cut = task.prompt.truncation
        if not special or ids.unread or cut is None or cut.side or fits(found.ids, cut):
            return truncated(ids, cut)
        plain = await self._encode(model.tokenizer, tokenizer, text, task, special=False)
        if plain.covered_chars < len(text):
            return truncated(ids._replace(unread=estimate(text)), cut)
        try:
            kept = cut_between(found.ids, plain.ids, cut)
        except ValueError as error:
            raise task.refused(f"cannot be honoured: {error}") from error
        if not kept:
            raise task.refused(f"is {cut.tokens}; the tokenizer's special tokens alone are as many")
        return Ids(kept, found.covered_chars)

    async def _chat(self, content: ChatBody, task: _Task) -> Ids:
        """Return a chat's tokens: from an engine if one tokenises for the model, else by the template.

        If the engine fails, a chat template of the router's own is the fall-back.
        """
        model, field, cut = task.prompt.model, task.prompt.field, task.prompt.truncation
        tokenizer = await self._tokenizer(task)
        if tokenizer is None:
            return Ids(b"", unread=estimate(_text_of(content, field)))
        if isinstance(tokenizer, EngineTokenizer):
            if cut and not cut.side and content.add_special_tokens:
                raise task.refused(
                    "needs truncation_side beside add_special_tokens: the engine renders the chat"
                )
            try:
                # Chats have a store beside that of texts, so no text can be taken for a chat.
                name, text = f"{model.tokenizer}\nchat", _text_of(content, field)
                found = await self._encode(name, tokenizer.chats, text, task, special=False)
                if task.trace:
                    task.trace.tokenised("", found)
                unread = estimate(text, found.covered_chars)
                return truncated(Ids(found.ids, 0, found.memo, unread), cut)
            except InvalidTextError as error:
                raise BadRequestError(field, str(error)) from error
            except TokenizerUnavailableError as error:
                if not self._texts.renderer.knows(model.name):
                    raise self._unavailable(task, error) from error
        text = await self._render(content, task)
        task.step("render the chat")
        special = content.add_special_tokens
        return await self._text(text, task, special=special, tokenizer=tokenizer)

    async def _render(self, content: ChatBody, task: _Task) -> str:
        name = task.prompt.model.name
        try:
            return await self._texts.renderer.render(name, content.chat, task.left.seconds())
        except KeyError as error:
            raise NoTokenizerError(
                "prompt.chat_body", f"model {name!r} has no chat template; send token ids"
            ) from error
        except (RenderCrashedError, RenderTimeoutError):
            raise
        except BrokenTemplateError as error:
            # This template fails for every chat, so the request is not at fault.
            raise NoTokenizerError("prompt.chat_body.messages", error.problem) from error
        except TemplateError as error:
            field = f"prompt.chat_body.{error.field or 'messages'}"
            raise BadRequestError(field, error.problem) from error

    async def _tokenizer(self, task: _Task) -> Tokenizer | None:
        name = task.prompt.model.tokenizer
        tokenizer = self._texts.tokenizers.held(name)
        try:
            if tokenizer is None:
                # The timeout ends only the wait: the cache goes on loading.
                await tasked()
                async with asyncio.timeout(task.left.seconds()):
                    tokenizer = await self._texts.tokenizers.get(name)
        except TimeoutError:
            return None
        except TokenizerUnavailableError as error:
            if not self._texts.tokenizers.is_needed(name):
                problem = f"model {name!r} has no tokenizer configured, and {error}; send token ids"
                raise NoTokenizerError(task.prompt.field, problem) from error
            raise self._unavailable(task, error) from error
        task.step("have the tokenizer")
        return tokenizer

    async def _encode(
        self, tokenizer_id: str, tokenizer: Tokenizer, text: str, task: _Task, *, special: bool
    ) -> Tokens:
        found = await self._texts.pool.encode(
            tokenizer_id, tokenizer, text, add_special_tokens=special, timeout=task.left.seconds()
        )
        task.step("tokenise")
        self._troubles.pop((task.prompt.model.name, task.prompt.field), None)
        self._limits.check_tokens(task.prompt.field, len(found.ids) // TOKEN_BYTES)
        return found

    def _unavailable(
        self, task: _Task, error: TokenizerUnavailableError
    ) -> TokenizerUnavailableError:
        model = task.prompt.model
        # A traced request is somebody's look, whose failure says nothing of the traffic.
        if task.trace is None:
            self._troubles[model.name, task.prompt.field] = str(error)
        return TokenizerUnavailableError(
            f"model {model.name!r}: its tokenizer is unavailable: {error}; token ids need none"
        )


def _estimated(prompt: CheckedPrompt) -> Ids:
    """Return a prompt's tokens without a tokenizer; for a text or chat, only an estimated number.

    Raises BadRequestError for a chat that cannot be written as JSON.
    """
    content = prompt.content
    if isinstance(content, bytes):
        return truncated(Ids(content), prompt.truncation)
    text = content.text if isinstance(content, Text) else _text_of(content, prompt.field)
    return truncated(Ids(b"", unread=estimate(text)), prompt.truncation)


def _lacking(error: Exception) -> Blind:
    if isinstance(error, (FullError, ClosedError)):
        return "time"
    if isinstance(error, TokenizerUnavailableError) or isinstance(
        error.__cause__, TokenizerUnavailableError
    ):
        return "tokenizer"
    of_text = isinstance(error, NoTokenizerError) and not error.field.startswith("prompt.chat_body")
    return "tokenizer" if of_text else "template"


def _bytes_of(prompt: CheckedPrompt) -> bytes:
    """Return bytes that two prompts share about as far as they share tokens.

    Templates write tools before messages. Raises BadRequestError as `_text_of` does.
    """
    content = prompt.content
    assert not isinstance(content, bytes)
    if isinstance(content, Text):
        text = content.text
    else:
        request = content.request()
        first = {name: request[name] for name in BEFORE_MESSAGES if name in request}
        text = _as_text({**first, "messages": request["messages"]}, prompt.field)
        return written(text.encode(errors="surrogatepass"))
    return text.encode(errors="surrogatepass")


def _text_of(chat: ChatBody, field: str) -> str:
    return _as_text(chat.request(), field)


def _as_text(request: Mapping[str, Any], field: str) -> str:
    try:
        return chat_text(request)
    except InvalidTextError as error:
        raise BadRequestError(field, str(error)) from error
