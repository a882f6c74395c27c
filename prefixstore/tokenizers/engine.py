"""A client of the engines' own tokenizer, over HTTP.

`/tokenize` is vLLM's (`vllm/entrypoints/serve/tokenize`, 0.32; the fields are the same since 0.6): it
takes a text or a chat and returns the token ids that the engine would use. The engines of one model are
tried in order. Requests hold prompts, so no message of this module quotes a request or an answer.
"""

import json
import logging
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

MAX_REFUSAL_CHARS = 300


@dataclass(slots=True)
class EngineStats:
    """Counters of the requests to engines, which the router exports as metrics."""

    asked: int = 0
    failures: int = 0
    fallbacks: int = 0
    """Requests that no engine answered, for which there is a tokenizer on this machine."""


class RequestSpan(Protocol):
    """The span of one request."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers that carry the trace to the engine."""

    def answered(self, status: int) -> None:
        """Note the answer's status."""


Tracing = Callable[[str, str], AbstractContextManager[RequestSpan]]
"""Returns the context of a request, by its method and URL."""


class Engine:
    """One model's engines. Thread-safe; `close` it at the end.

    Each URL may take `timeout` seconds. A URL that failed is skipped for `skip_for` seconds of
    `clock`; a call fails at once if all URLs are skipped.
    """

    def __init__(
        self,
        urls: Sequence[str],
        model: str,
        *,
        timeout: float,
        skip_for: float,
        clock: Callable[[], float],
        key: Callable[[], str] | None = None,
        tls: Callable[[], ssl.SSLContext] | None = None,
        server_name: str | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        """`model` is the name that engines serve; `key` returns their `--api-key`, the newest one.

        `tls` returns the context that verifies the certificates of `https` URLs, another one after its
        files have changed; `server_name`, if given, is expected in them instead of the URL's host.
        `tracing` is called in the thread and context that make the request.
        """
        self.name = f"the engine at {', '.join(urls)}"
        self.stats = EngineStats()
        self._model = model
        self._urls = [url.rstrip("/") + "/tokenize" for url in urls]
        self._skip_until = dict.fromkeys(self._urls, float("-inf"))
        self._timeout = timeout
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

    def ask(self, body: Mapping[str, Any]) -> bytes:
        """Return the ids of a text or chat, in the form of `/tokenize`. Raises as `tokenize` does.

        A chat has the fields of a chat request: `messages`, `tools`, `add_generation_prompt`,
        `continue_final_message`, `add_special_tokens`, `chat_template_kwargs`. The engine renders it.
        """
        try:
            content = json.dumps({**body, "model": self._model}, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise InvalidTextError("is not Unicode text: a lone surrogate") from error
        problems = []
        now = self._clock()
        for url in self._urls:
            if now < self._skip_until[url]:
                continue
            try:
                ids = self._post(url, content)
            except TokenizerUnavailableError as error:
                self.stats.failures += 1
                problems.append(str(error))
                if self._skip_until[url] == float("-inf"):
                    log.warning("%s; asking it again every %g s", error, self._skip_for)
                self._skip_until[url] = self._clock() + self._skip_for
            else:
                if self._skip_until[url] != float("-inf"):
                    self._skip_until[url] = float("-inf")
                    log.info("%s answers again", url)
                return ids
        reason = "; ".join(problems) or f"failed less than {self._skip_for:g} s ago"
        raise TokenizerUnavailableError(f"{self.name}: {reason}")

    def _post(self, url: str, content: bytes) -> bytes:
        self.stats.asked += 1
        headers = {"Content-Type": "application/json"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key()}"
        answer = bytearray()
        begun = self._clock()
        try:
            with (
                (self._tracing("POST", url) if self._tracing else nullcontext()) as span,
                self._client().stream(
                    "POST", url, content=content, extensions=self._extensions,
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
                    if self._clock() - begun > self._timeout:
                        raise TokenizerUnavailableError(f"{url}: {_too_slow(self._timeout)}")
        except httpx2.TimeoutException as error:
            raise TokenizerUnavailableError(f"{url}: {_too_slow(self._timeout)}") from error
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
                    timeout=self._timeout,
                    verify=context or True,
                    trust_env=False,
                    follow_redirects=False,
                )
                self._clients.append((context, client))
                # A request takes at most `timeout`: nobody uses the one before the last any more.
                for _, old in self._clients[:-2]:
                    old.close()
                del self._clients[:-2]
            return self._clients[-1][1]

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            for _, client in self._clients:
                client.close()


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
