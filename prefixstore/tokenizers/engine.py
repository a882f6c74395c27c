"""A client of the engines' own tokenizer, over HTTP.

`/tokenize` is vLLM's (`vllm/entrypoints/serve/tokenize`, 0.32; the fields are the same since 0.6): it
takes a text or a chat and returns the token ids that the engine would use. The engines of one model are
tried in order. Requests hold prompts, so no message of this module quotes a request or an answer.
"""

import json
import logging
import math
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import httpx2

from warmpath.prefixstore.tokenizers.tokenizer import (
    ID_BYTES,
    IdsError,
    InvalidTextError,
    TokenizerUnavailableError,
    check_text,
    in_words,
    pack,
)

log = logging.getLogger(__name__)

MAX_ANSWER_BYTES = 64 << 20
"""About eight million ids: far more than any engine's longest context."""

REFUSALS = (400, 413, 422)
"""HTTP statuses that mean a faulty prompt; any other error counts as the engine's."""
MOST_TRIES = 3
"""Most engines that are asked for one text: each may take the whole timeout."""

PLAIN_CHAT = {"messages": [{"role": "user", "content": "a"}]}
NO_CHATS = "its /tokenize takes no chats, or it has no chat template"
CHATS_AGAIN = 60.0
"""Seconds after which an engine that refused the plainest chat is asked for chats again."""

MAX_REFUSAL_CHARS = 300


@dataclass(slots=True)
class EngineStats:
    """Counters of the requests to engines, which the router exports as metrics."""

    asked: int = 0
    failures: int = 0
    fallbacks: int = 0
    """Requests that no engine answered, for which there is a tokenizer on this machine."""


class RequestSpan(Protocol):
    """The span of one request in a trace."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers that carry the trace to the engine."""

    def answered(self, status: int) -> None:
        """Note the answer's status."""


Tracing = Callable[[str, str], AbstractContextManager[RequestSpan]]
"""Returns, by method and URL, the context in which a request is made and traced."""


class Engine:
    """One model's engines. Thread-safe; `close` it at the end.

    MOST_TRIES URLs are tried. Each may take `timeout` seconds, but the last one, after which there is
    nobody else to ask, `patience` seconds. A URL that failed is skipped for `skip_for` seconds of
    `clock`; a call fails at once if all URLs are skipped.
    """

    def __init__(
        self,
        urls: Callable[[], Sequence[str]],
        model: str,
        *,
        name: str,
        timeout: float,
        patience: float,
        skip_for: float,
        clock: Callable[[], float],
        key: Callable[[str], str] | None = None,
        tls: Callable[[], ssl.SSLContext] | None = None,
        server_name: str | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        """`urls` returns the engines' URLs, in the order in which they are tried now.

        `model` is the name that engines serve; `name` names them in messages. `key` returns the newest
        `--api-key` of the engine at a URL, empty for none; it may raise TokenizerUnavailableError.

        `tls` returns the context that verifies the certificates of `https` URLs, another one after its
        files have changed; `server_name`, if given, is expected in them instead of the URL's host.
        `tracing` is called in the thread and context that make the request.
        """
        self.name = name
        self.stats = EngineStats()
        self._model = model
        self._urls = urls
        self._no_chats_until: Mapping[str, float] = {}
        """By URL that refused the plainest chat, until when it is asked for no chats."""
        self._failed: Mapping[str, tuple[float, str]] = {}
        """By URL that failed the last time, until when it is skipped, and why."""
        self._timeout = timeout
        self._patience = patience
        self._skip_for = skip_for
        self._clock = clock
        self._extensions = {"sni_hostname": server_name} if server_name else {}
        self._key = key
        self._tracing = tracing
        self._tls = tls
        self._lock = threading.Lock()
        self._clients: list[tuple[ssl.SSLContext | None, httpx2.Client]] = []
        """The clients of the contexts so far, the newest last. Threads may be using older ones."""

    def tokenize(self, text: str, *, add_special_tokens: bool) -> bytes:
        """Return a text's ids, packed.

        Raises InvalidTextError if the engine refuses the text, TokenizerUnavailableError if no engine
        answers.
        """
        check_text(text)
        return self.ask({"prompt": text, "add_special_tokens": add_special_tokens})

    def chat(self, body: Mapping[str, Any]) -> bytes:
        """Return the ids of a chat, which the engine renders. Raises as `tokenize` does.

        `body` has the fields of a chat request: `messages`, `tools`, `add_generation_prompt`,
        `continue_final_message`, `add_special_tokens`, `chat_template_kwargs`. Engines whose /tokenize
        takes texts alone, as SGLang's did, refuse PLAIN_CHAT too; they are asked for no chat for
        CHATS_AGAIN seconds, and the others are.
        """
        return self._ask(body, is_chat=True)

    def ask(self, body: Mapping[str, Any]) -> bytes:
        """Return the packed ids for a body of `/tokenize`; adds the model. Raises as `tokenize` does."""
        return self._ask(body, is_chat=False)

    def _ask(self, body: Mapping[str, Any], *, is_chat: bool) -> bytes:
        content = self._content(body)
        problems: list[str] = []
        now, urls, failed = self._clock(), self._urls(), self._failed
        closed = self._no_chats_until if is_chat else {}
        able = [url for url in urls if now >= closed.get(url, -math.inf)]
        if urls and not able:
            raise TokenizerUnavailableError(f"{self.name}: {NO_CHATS}")
        left = [url for url in able if now >= failed.get(url, (-math.inf, ""))[0]][:MOST_TRIES]
        for number, url in enumerate(left, 1):
            timeout = self._timeout if number < len(left) else self._patience
            try:
                ids = self._post(url, content, timeout)
            except InvalidTextError:
                if not is_chat or self._takes_chats(url):
                    raise
                problems.append(NO_CHATS)
            except TokenizerUnavailableError as error:
                self.stats.failures += 1
                problems.append(str(error))
                if url not in self._failed:
                    log.warning("%s; asking it again every %g s", error, self._skip_for)
                self._skip(url, (self._clock() + self._skip_for, str(error)), urls)
            else:
                if url in self._failed:
                    self._skip(url, None, urls)
                    log.info("%s answers again", _tokenize(url))
                return ids
        problems = problems or [failed[url][1] for url in able][:MOST_TRIES] or ["there is none"]
        raise TokenizerUnavailableError(f"{self.name}: {'; '.join(problems)}")

    def _content(self, body: Mapping[str, Any]) -> bytes:
        try:
            return json.dumps({**body, "model": self._model}, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise InvalidTextError("is not Unicode text: a lone surrogate") from error

    def _takes_chats(self, url: str) -> bool:
        """Return whether an engine takes PLAIN_CHAT, and remember it if not."""
        try:
            self._post(url, self._content(PLAIN_CHAT), self._timeout)
        except InvalidTextError:
            again = self._clock() + CHATS_AGAIN
            self._no_chats_until = {**self._no_chats_until, url: again}
            return False
        return True

    def _skip(self, url: str, failed: tuple[float, str] | None, urls: Sequence[str]) -> None:
        """Note that a URL has failed; None: no longer. Those that are not among `urls` are forgotten."""
        # Other threads read the mapping, so it is replaced and not changed.
        others = {one: at for one, at in self._failed.items() if one in urls and one != url}
        self._failed = others if failed is None else {**others, url: failed}

    def _post(self, base: str, content: bytes, timeout: float) -> bytes:
        url = _tokenize(base)
        self.stats.asked += 1
        headers = {"Content-Type": "application/json"}
        if self._key is not None and (key := self._key(base)):
            headers["Authorization"] = f"Bearer {key}"
        answer = bytearray()
        begun = self._clock()
        try:
            with (
                (self._tracing("POST", url) if self._tracing else nullcontext()) as span,
                self._client().stream(
                    "POST", url, content=content, extensions=self._extensions, timeout=timeout,
                    headers={**headers, **span.headers} if span else headers,
                ) as response,
            ):  # fmt: skip
                status = response.status_code
                if span:
                    span.answered(status)
                for part in response.iter_bytes():
                    answer += part
                    if len(answer) > MAX_ANSWER_BYTES:
                        problem = f"answers more than {MAX_ANSWER_BYTES} bytes"
                        raise TokenizerUnavailableError(f"{url}: {problem}")
                    # The client bounds each read; this bounds their sum.
                    if self._clock() - begun > timeout:
                        raise TokenizerUnavailableError(f"{url}: {_too_slow(timeout)}")
        except httpx2.TimeoutException as error:
            raise TokenizerUnavailableError(f"{url}: {_too_slow(timeout)}") from error
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            raise TokenizerUnavailableError(f"{url}: {in_words(error)}") from error
        if status in REFUSALS:
            raise InvalidTextError(f"is refused by the engine: {_refusal(bytes(answer), status)}")
        if status != 200:
            raise TokenizerUnavailableError(f"{url}: answers HTTP {status}")
        return _ids(url, bytes(answer))

    def _client(self) -> httpx2.Client:
        context = self._tls() if self._tls is not None else None
        with self._lock:
            if not self._clients or self._clients[-1][0] is not context:
                # No proxy and no credentials from the environment: engines are in the same network.
                client = httpx2.Client(
                    verify=context or True, trust_env=False, follow_redirects=False
                )
                self._clients.append((context, client))
                # A request takes at most `patience`: nobody uses the one before the last any more.
                for _, old in self._clients[:-2]:
                    old.close()
                del self._clients[:-2]
            return self._clients[-1][1]

    def close(self) -> None:
        with self._lock:
            for _, client in self._clients:
                client.close()


def _tokenize(base: str) -> str:
    return f"{base.rstrip('/')}/tokenize"


def _too_slow(timeout: float) -> str:
    return f"did not answer within {timeout:g} s"


def _ids(url: str, answer: bytes) -> bytes:
    try:
        value = json.loads(answer)
        if not isinstance(value, dict):
            raise IdsError("is not a JSON object")
        packed = pack(value.get("tokens"))
        count = len(packed) // ID_BYTES
        if value.get("count", count) != count:
            raise IdsError(f"has {count} tokens, but its count is {value['count']}")
    except (ValueError, RecursionError) as error:
        # A decoder's message may quote what it decoded.
        problem = str(error) if isinstance(error, IdsError) else "is not JSON"
        raise TokenizerUnavailableError(f"{url}: the answer {problem}") from error
    return packed


def _refusal(answer: bytes, status: int) -> str:
    """Return the engine's message about the prompt; it goes to the sender, never to a log."""
    try:
        value = json.loads(answer)
        message = (value.get("error") or value)["message"]
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError):
        message = None
    return message[:MAX_REFUSAL_CHARS] if isinstance(message, str) else f"HTTP {status}"
