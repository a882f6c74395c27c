"""The answers to OpenAI's completions and chats, which have choices: whole, in chunks, and the usage.

Source: `vllm/entrypoints/openai/{completion,chat_completion}/serving.py` of 0.32. The usage
of a whole answer and of the last chunk has the number of cached tokens, as with vLLM's
`--enable-prompt-tokens-details`; the usage of other chunks does not.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from warmpath.lab.simworker.api.inference.answer import Answer
from warmpath.lab.simworker.api.inference.token_stream import Piece


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int | None) -> dict[str, Any]:
    """Return a usage object; `cached_tokens` is left out where it is None."""
    found: dict[str, Any] = {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }
    if cached_tokens is not None:
        found["prompt_tokens_details"] = {"cached_tokens": max(cached_tokens, 0)}
    return found


class ChoicesAnswer(Answer):
    """The common part of completions and chats. Choice `i` is sample `i % n` of prompt `i // n`."""

    prefix = ""
    object_whole = ""
    object_chunk = ""

    def _begin(self) -> None:
        options = self._options
        self._head = {
            "id": f"{self.prefix}-{options.answer_id}", "created": self._created, "model": options.model
        }  # fmt: skip
        self._begun = [False] * len(self._flights)
        self._first_cached: int | None = None

    def whole(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        choices = [self._choice(piece) for piece in pieces]
        answer = self._head | {"object": self.object_whole, "choices": choices}
        answer["usage"] = self._usage(self._flights[-1].cached_tokens)
        answer["kv_transfer_params"] = None
        return answer

    def chunks(self, piece: Piece) -> Iterator[dict[str, Any]]:
        if self._first_cached is None:
            self._first_cached = self._flights[piece.choice].cached_tokens
        chunk = self._head | {"object": self.object_chunk, "choices": [self._delta(piece)]}
        self._begun[piece.choice] = True
        yield self._with_usage(chunk, piece.choice)

    def closing(self) -> Sequence[dict[str, Any]]:
        """Return the last chunk, with the usage, if the request asks for usage; otherwise nothing."""
        if not self._options.include_usage:
            return ()
        chunk = self._head | {"object": self.object_chunk, "choices": []}
        return (chunk | {"usage": self._usage(self._first_cached)},)

    def _with_usage(self, chunk: dict[str, Any], choice: int) -> dict[str, Any]:
        if self._options.continuous_usage:
            flight = self._flights[choice]
            chunk["usage"] = usage(len(flight.ask.prompt), len(flight.tokens), None)
        return chunk

    def _usage(self, cached_tokens: int | None) -> dict[str, Any]:
        prompts = self._flights[:: self._options.samples]
        return usage(
            sum(len(flight.ask.prompt) for flight in prompts),
            sum(len(flight.tokens) for flight in self._flights),
            cached_tokens,
        )

    def _choice(self, piece: Piece) -> dict[str, Any]:
        raise NotImplementedError

    def _delta(self, piece: Piece) -> dict[str, Any]:
        raise NotImplementedError


class CompletionAnswer(ChoicesAnswer):
    """The answer to a completion. With `return_token_ids` each choice has its prompt's ids."""

    prefix = "cmpl"
    object_whole = object_chunk = "text_completion"

    def _choice(self, piece: Piece) -> dict[str, Any]:
        choice = {
            "index": piece.choice,
            "text": self._echo(piece.choice) + self._text.decode(piece.tokens),
            "logprobs": None,
            "finish_reason": piece.finish_reason,
            "stop_reason": None,
            "prompt_logprobs": None,
        }
        return choice | self._ids(piece, first=True)

    def _delta(self, piece: Piece) -> dict[str, Any]:
        first = not self._begun[piece.choice]
        choice = {
            "index": piece.choice,
            "text": (self._echo(piece.choice) if first else "") + self._text.decode(piece.tokens),
            "logprobs": None,
            "finish_reason": piece.finish_reason,
            "stop_reason": None,
        }
        return choice | self._ids(piece, first=first)

    def _ids(self, piece: Piece, *, first: bool) -> dict[str, Any]:
        if not self._options.return_token_ids:
            return {}
        prompt = self._flights[piece.choice].ask.prompt
        return {"token_ids": piece.tokens} | ({"prompt_token_ids": prompt} if first else {})

    def _echo(self, choice: int) -> str:
        # vLLM echoes no text if it returns ids.
        if not self._options.echo or self._options.return_token_ids:
            return ""
        return self._text.decode(self._flights[choice].ask.prompt)


class ChatAnswer(ChoicesAnswer):
    """The answer to a chat. With `return_token_ids` it, or its first chunk, has the prompt's ids."""

    prefix = "chatcmpl"
    object_whole = "chat.completion"
    object_chunk = "chat.completion.chunk"

    def whole(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        return super().whole(pieces) | self._prompt_ids()

    def chunks(self, piece: Piece) -> Iterator[dict[str, Any]]:
        """Yield the chunks for new tokens; the first chunks name the role, one for each choice."""
        if not any(self._begun):
            for choice in range(len(self._flights)):
                delta = {"role": "assistant", "content": ""}
                role = {"index": choice, "delta": delta, "logprobs": None, "finish_reason": None}
                chunk = self._head | {"object": self.object_chunk, "choices": [role]}
                if self._options.continuous_usage:
                    chunk["usage"] = usage(len(self._flights[choice].ask.prompt), 0, None)
                yield chunk | self._prompt_ids()
        yield from super().chunks(piece)

    def _prompt_ids(self) -> dict[str, Any]:
        if not self._options.return_token_ids:
            return {}
        return {"prompt_token_ids": self._flights[0].ask.prompt}

    def _choice(self, piece: Piece) -> dict[str, Any]:
        message = {"role": "assistant", "content": self._text.decode(piece.tokens)}
        return self._part(piece) | {"message": message}

    def _delta(self, piece: Piece) -> dict[str, Any]:
        return self._part(piece) | {"delta": {"content": self._text.decode(piece.tokens)}}

    def _part(self, piece: Piece) -> dict[str, Any]:
        part: dict[str, Any] = {
            "index": piece.choice,
            "logprobs": None,
            "finish_reason": piece.finish_reason,
            "stop_reason": None,
        }
        if self._options.return_token_ids:
            part["token_ids"] = piece.tokens
        return part
