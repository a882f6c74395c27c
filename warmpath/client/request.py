"""A request to an engine from its pick to its end: where to send it, and what the router is told of it.

No I/O: the client sends the reports.
"""

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from random import Random
from types import TracebackType
from typing import Any, Self, TypedDict

from warmpath.client.calls import PodLoad
from warmpath.client.failure import CallError
from warmpath.proto.errors import Reason
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.inference_api.response import Usage, usage_of

PICK_SECONDS = 1.0
"""The most seconds that a request waits for its pick, unless its caller says otherwise."""

FINAL = frozenset(map(Reason.Name, (Reason.NO_POD, Reason.QUEUE_FULL, Reason.UNKNOWN_MODEL)))
"""Reasons for which a request must not go to any pod."""
UNREADABLE = frozenset(map(Reason.Name, (Reason.BAD_REQUEST, Reason.TOO_LARGE)))
"""Reasons for which a pick goes by load alone: the engine is to say what is wrong with the prompt."""


class ExplainOptions(TypedDict, total=False):
    """Further arguments for a pick, and for its explanation."""

    pods: Sequence[str]
    """Only these may be picked, by their ids; empty: all."""
    policy: str
    session: str
    loads: Sequence[PodLoad]
    disaggregated: bool
    priority: str
    """The request's class in the router's queue; `tenant`: whose it is there."""
    tenant: str


class PickOptions(ExplainOptions, total=False):
    """Further arguments for a pick."""

    parent_session: str
    """Of a sub-agent: the session that began its own `session`."""
    session_final: bool
    """Whether the session ends with this request."""
    client: str
    """The User-Agent of the request's client; metrics and findings name its product."""


class RequestOptions(PickOptions, total=False):
    """All arguments for a request but `prompt`, with the meaning that they have in `begin`."""

    messages: Sequence[Mapping[str, Any]] | None
    tokens: Sequence[int] | bytes | None
    model: str
    otherwise: Sequence[str]
    timeout: float


MOST_MODELS = 1000
"""Models whose last pods a client remembers."""


class KnownPods:
    """The pods that a client's picks have named, for requests without a pick."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._last: dict[str, Sequence[pb.Candidate]] = {}

    def remember(self, model: str, pods: Sequence[pb.Candidate]) -> None:
        """Keep the pods of a pick; nothing if the `model` is empty, as only the router has read it."""
        if model and (model in self._last or len(self._last) < MOST_MODELS):
            self._last[model] = pods

    def without_pick(
        self, model: str, otherwise: Sequence[str], pods: Sequence[str]
    ) -> list[pb.Candidate]:
        """Return, shuffled, pods at `otherwise`, else the last pick's, those of `pods` if it has any."""
        found: Sequence[pb.Candidate] = [pb.Candidate(address=one) for one in otherwise]
        if not found:
            last = self._last.get(model, ())
            found = [one for one in last if not pods or one.pod in pods]
        return self._rng.sample(found, len(found))


class Request:
    """A request to an engine. Thread-safe; none of the methods for its caller raises or waits.

    A context manager: its end is reported as failed if the block raises or is cancelled, and as finished
    otherwise. Reports that cannot be delivered are dropped; such a booking expires.
    """

    def __init__(self, send: Callable[..., object]) -> None:
        """Begin; `send` takes a report's arguments, and `is_precaution`: that nobody counts on it."""
        self.booking_id = uuid.uuid4().hex
        self.pick: pb.PickResponse | None = None
        """The router's answer; None if the request goes on without one."""
        self.failure: CallError | None = None
        """Why the request goes on without a pick, or with one by load alone; None if it does not."""
        self.candidates: Sequence[pb.Candidate] = ()
        """The pods to try, best first; without a pick in random order."""
        self.endpoint: pb.Candidate | None = None
        """The pod to which the request goes: the first candidate, or the last that `endpoints` gave."""
        self._send = send
        self._lock = threading.Lock()
        self._is_over = False
        self._has_first_token = False
        self._usage = Usage()

    @property
    def address(self) -> str:
        """The address of `endpoint`, host:port; empty if there is none."""
        return self.endpoint.address if self.endpoint is not None else ""

    def endpoints(self) -> Iterator[pb.Candidate]:
        """Yield the pods to try, best first, and tell the router of each that is not the first.

        Go on to the next one where a pod cannot be reached, and leave the loop where one answers.
        """
        for one in self.candidates:
            if one is not self.endpoint:
                self.endpoint = one
                self._report("started", pod=one.pod, rank=one.rank)
            yield one

    def first_token(self) -> None:
        """Report that the first token has come; only the first call counts."""
        with self._lock:
            is_first, self._has_first_token = not self._has_first_token, True
        if is_first:
            self._report("first_token")

    def usage(
        self,
        usage: Mapping[str, Any] | None = None,
        *,
        prompt_tokens: int | None = None,
        cached_tokens: int | None = None,
        output_tokens: int | None = None,
    ) -> None:
        """Keep what the engine counted, for the report of the end.

        `usage` is the object of that name in a response of any API, from JSON. Values that are no counts
        are left out; later ones replace earlier ones.
        """
        given = {"prompt_tokens": prompt_tokens, "cached_tokens": cached_tokens}
        given["output_tokens"] = output_tokens
        with self._lock:
            self._usage = self._usage.then(usage_of(usage)).then(usage_of(given))

    def finish(self) -> None:
        """Report that the answer is complete. Only the first `finish` or `fail` counts."""
        counted = self._usage
        prompt, cached = counted.prompt_tokens, counted.cached_tokens
        if prompt is not None and cached is not None and cached > prompt:
            # The router refuses more than there is, and the end with it.
            prompt = cached = None
        self._report(
            "finished", prompt_tokens=prompt, cached_tokens=cached,
            output_tokens=counted.output_tokens,
        )  # fmt: skip

    def fail(self) -> None:
        """Report that the engine failed or the client left. Only the first `finish` or `fail` counts."""
        self._report("failed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()
        else:
            self.fail()

    # For the client

    def picked(self, answer: pb.PickResponse) -> None:
        """Take the router's pick."""
        self.pick = answer
        self._take(answer.candidates)

    def go_on_without(self, failure: CallError, known: Sequence[pb.Candidate]) -> None:
        """Go to the `known` pods, as the pick failed.

        Raises `failure` if none is known, or if its reason is one of FINAL.
        """
        self.fail()
        if failure.reason in FINAL or not known:
            raise failure
        self.failure = failure
        self._take(known)

    def _take(self, candidates: Sequence[pb.Candidate]) -> None:
        self.candidates = candidates
        self.endpoint = candidates[0] if candidates else None

    def _report(self, event: str, **figures: Any) -> None:
        with self._lock:
            if self._is_over:
                return
            self._is_over = event in ("finished", "failed")
            # Without a pick it is a precaution: the pick may have been made though no answer came.
            report = {"booking_id": self.booking_id, "event": event, **figures}
            # It is lost if the client is closed, or an engine has counted more than a message can hold.
            with suppress(RuntimeError, ValueError):
                self._send(report, is_precaution=self.pick is None)
