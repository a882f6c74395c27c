"""The engines' own tokenizer, asked over HTTP.

`/tokenize` is vLLM's (`vllm/entrypoints/serve/tokenize`, 0.32; the fields are the same since 0.6): a
text or a chat in, the ids that the engine would compute on out. Several engines of one model are asked
in turn. What they are asked is prompts: no message of here quotes any of it.
"""

import json
import logging
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2

from prefixstore.tokenizers.ids import ID_BYTES, IdsError, pack
from prefixstore.tokenizers.tokenizer import InvalidTextError, TokenizerUnavailableError, check_text

log = logging.getLogger(__name__)

MAX_ANSWER_BYTES = 64 << 20
"""About eight million ids: far more than any engine's longest context."""

REFUSALS = (400, 413, 422)
"""Statuses that say that the prompt is at fault; any other one is the engine's."""

MAX_REFUSAL_CHARS = 300


@dataclass(slots=True)
class EngineStats:
    """What went on; plain numbers, exported by the process."""

    asked: int = 0
    failures: int = 0


class Engine:
    """One model's engines. Thread-safe; `close` it at the end.

    `timeout` bounds, in seconds, what one URL may take; `skip_for` is how many seconds of `clock` one
    that failed is not asked. Where all are being skipped a call fails at once, but for one a `skip_for`.
    """

    def __init__(
        self,
        urls: Sequence[str],
        model: str,
        *,
        timeout: float,
        skip_for: float,
        clock: Callable[[], float],
        key: str = "",
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
    ) -> None:
        """`model` is the name the engines serve it as, `key` what they ask for (`--api-key`).

        Engines with `https` are recognised by `tls`, and by `server_name` instead of their URL's host
        where it is given.
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
        # No proxy and no credentials from the environment: engines are neighbours.
        self._client = httpx2.Client(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=timeout,
            verify=tls or True,
            trust_env=False,
            follow_redirects=False,
        )

    def tokenize(self, text: str, *, add_special_tokens: bool) -> bytes:
        """Return a text's ids, packed.

        Raises InvalidTextError where the engine refuses the text, TokenizerUnavailableError where no
        engine answers.
        """
        check_text(text)
        return self._ask({"prompt": text, "add_special_tokens": add_special_tokens})

    def tokenize_chat(self, body: Mapping[str, Any]) -> bytes:
        """Return a chat's ids as the engine's own template renders it; raises as `tokenize` does.

        `body` is a chat request's: `messages`, `tools`, `add_generation_prompt`,
        `continue_final_message`, `add_special_tokens`, `chat_template_kwargs`.
        """
        return self._ask(body)

    def _ask(self, body: Mapping[str, Any]) -> bytes:
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
        with _own_errors(url, self._timeout):
            begun = self._clock()
            headers = {"Content-Type": "application/json"}
            with self._client.stream(
                "POST", url, content=content, headers=headers, extensions=self._extensions
            ) as response:
                answer = bytearray()
                for part in response.iter_bytes():
                    answer += part
                    if len(answer) > MAX_ANSWER_BYTES:
                        problem = f"answers more than {MAX_ANSWER_BYTES} bytes"
                        raise TokenizerUnavailableError(f"{url}: {problem}")
                    # The client bounds each read; this bounds their sum.
                    if self._clock() - begun > self._timeout:
                        raise TokenizerUnavailableError(f"{url}: {_too_slow(self._timeout)}")
            status = response.status_code
        if status in REFUSALS:
            raise InvalidTextError(f"is refused by the engine: {_refusal(bytes(answer), status)}")
        if status != 200:
            raise TokenizerUnavailableError(f"{url}: answers HTTP {status}")
        return _ids(url, bytes(answer))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


@contextmanager
def _own_errors(url: str, timeout: float) -> Iterator[None]:
    try:
        yield
    except httpx2.TimeoutException as error:
        raise TokenizerUnavailableError(f"{url}: {_too_slow(timeout)}") from error
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
        raise TokenizerUnavailableError(f"{url}: {type(error).__name__}: {error}") from error


def _too_slow(timeout: float) -> str:
    return f"did not answer within {timeout:g} s"


def _ids(url: str, answer: bytes) -> bytes:
    try:
        value = json.loads(answer)
        if not isinstance(value, dict):
            raise IdsError("is no object")
        packed = pack(value.get("tokens"))
        count = len(packed) // ID_BYTES
        if value.get("count", count) != count:
            raise IdsError(f"holds {count} tokens and counts {value['count']}")
    except (ValueError, RecursionError) as error:
        # A decoder's message may quote what it decoded.
        problem = str(error) if isinstance(error, IdsError) else "is not JSON"
        raise TokenizerUnavailableError(f"{url}: the answer {problem}") from error
    return packed


def _refusal(answer: bytes, status: int) -> str:
    """Return what the engine says of the prompt; for who sent it, not for a log."""
    try:
        value = json.loads(answer)
        message = (value.get("error") or value)["message"]
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError):
        message = None
    return message[:MAX_REFUSAL_CHARS] if isinstance(message, str) else f"HTTP {status}"
