"""One check of a part of a deployment, the setting that mends it, and an engine's answers over HTTP."""

import email.utils
import json
import time
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import aiohttp

from warmpath.indexer.follow.instance import EngineTls
from warmpath.indexer.follow.poll import problem_of
from warmpath.router.config.schema import PodSpec

Verdict = Literal["ok", "WRONG", "not known"]

SET_KEYS = {
    "address": "port", "events": "events-port", "replay": "replay-port", "watch": "watch-port",
}  # fmt: skip
"""By a key of [[pods]], the key of [[pod-sets]] from which it is made."""


class Check(NamedTuple):
    """The result of one check."""

    subject: str
    """The part that was checked: `pod vllm-0`, `Redis`."""
    check: str
    """The property that was checked: `block size`."""
    verdict: Verdict
    text: str
    """The state that was found; if WRONG, the fault."""
    change: str = ""
    """If WRONG: the setting to change, or the next step."""

    @property
    def line(self) -> str:
        change = f"; {self.change}" if self.change else ""
        return f"{self.verdict:<9}  {self.subject}: {self.check}: {self.text}{change}"


class Placed(NamedTuple):
    """A pod, and the table of the configuration that describes it."""

    spec: PodSpec
    table: str
    """The table's key, such as `pods[0]` or `pod-sets[1]`."""

    def key(self, name: str) -> str:
        is_set = self.table.startswith("pod-sets")
        return f"{self.table}.{SET_KEYS.get(name, name) if is_set else name}"

    def ok(self, name: str, text: str) -> Check:
        return Check(f"pod {self.spec.id}", name, "ok", text)

    def wrong(self, name: str, text: str, change: str) -> Check:
        return Check(f"pod {self.spec.id}", name, "WRONG", text, change)

    def unknown(self, name: str, text: str) -> Check:
        return Check(f"pod {self.spec.id}", name, "not known", text)


MOST_BYTES = 16 << 20
"""Most bytes of an answer; more count as none. The metrics of 64 ranks have about 8 MB."""


class Answer(NamedTuple):
    """An engine's answer to one request."""

    status: int = 0
    """The HTTP status; 0: there was no answer."""
    body: bytes = b""
    problem: str = ""
    """Why there is no answer; empty if there is one."""
    ahead: tuple[float, float] | None = None
    """By how many seconds the engine's clock may be ahead of ours: least and most, since its `Date` is
    rounded and the answer took a time. None without a `Date`."""

    @property
    def fields(self) -> Mapping[str, Any]:
        """The body's JSON object; empty if the body is none, or the status is not 200."""
        try:
            value = json.loads(self.body) if self.status == 200 else None
        except (ValueError, RecursionError):
            value = None
        return value if isinstance(value, dict) else {}

    @property
    def models(self) -> list[Mapping[str, Any]]:
        """The entries of /v1/models."""
        data = self.fields.get("data")
        return [one for one in data if isinstance(one, dict)] if isinstance(data, list) else []


async def ask(
    engine: aiohttp.ClientSession,
    path: str,
    body: Mapping[str, Any] | None = None,
    *,
    tls: EngineTls | None = None,
) -> Answer:
    """Send an engine a GET, or a POST with a JSON `body`; return the answer. Raises nothing.

    The session has the engine's URL, its API key and the longest wait.
    """
    before = time.time()
    try:
        encrypted: Any = {"ssl": tls.context, "server_hostname": tls.name} if tls else {}
        method = "GET" if body is None else "POST"
        request = engine.request(method, path, json=body, allow_redirects=False, **encrypted)
        async with request as response:
            answer = bytearray()
            async for part in response.content.iter_any():
                answer += part
                if len(answer) > MOST_BYTES:
                    return Answer(problem=f"{path} has more than {MOST_BYTES} bytes")
            ahead = _ahead(response.headers.get("Date", ""), before, time.time())
            return Answer(response.status, bytes(answer), "", ahead)
    except (aiohttp.ClientError, TimeoutError) as error:
        return Answer(problem=problem_of(error))


def _ahead(date: str, before: float, after: float) -> tuple[float, float] | None:
    """Return by how much a clock that said `date` between two of our times may be ahead of ours."""
    try:
        said = email.utils.parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return None
    # The date has no fractions, and it was written at a moment between the two times.
    return said - after, said + 1.0 - before
