"""The calls of the contract, made of a caller's values; the clients carry them out."""

from dataclasses import asdict, dataclass
from numbers import Integral
from typing import Any

from google.protobuf.message import Message

from warmpath.client.checks import (
    check_arguments,
    check_each,
    check_figure,
    check_names,
    check_numbers,
)
from warmpath.client.prompt import AnyPrompt, prompt_of
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.report_event import EVENTS
from warmpath.router.load.engine_metrics import problem_of


@dataclass(frozen=True, slots=True)
class PodLoad:
    """A rank's load as a caller knows it; it counts for a few seconds, corrected by later bookings.

    Raises ValueError for an impossible load, TypeError for what is no figure.

    >>> PodLoad("pod-1", running=3, waiting=1, kv_usage=0.4).rank
    0
    """

    pod: str
    rank: int = 0
    running: int = 0
    """Requests that the engine computes."""
    waiting: int = 0
    """Requests in its queue."""
    kv_usage: float = 0.0
    """Share of its KV cache that requests hold, 0 to 1."""
    age: float = 0.0
    """The age of these figures, in seconds."""

    def __post_init__(self) -> None:
        check_names(pod=self.pod)
        check_numbers(Integral, rank=self.rank, running=self.running, waiting=self.waiting)
        check_numbers(kv_usage=self.kv_usage, age=self.age)
        found = problem_of(
            running=self.running, waiting=self.waiting, kv_usage=self.kv_usage, age=self.age
        )
        if found is not None:
            field, problem = found
            raise ValueError(f"the load of pod {self.pod!r}: {field or 'it'} {problem}")
        check_figure("rank", self.rank)

    def message(self) -> pb.PodLoad:
        return pb.PodLoad(**asdict(self))


@dataclass(frozen=True, slots=True)
class RouterCall:
    """One call of a router."""

    method: str
    request: Message
    is_repeatable: bool
    """Whether it may be made again though nobody knows whether it was carried out."""


class RouterCalls:
    """Makes calls for prompts of `model`, unless they name another one."""

    def __init__(self, model: str) -> None:
        check_arguments(model=model)
        self._model = model or ""

    def of(self, answer: type[Message], **given: Any) -> RouterCall:
        """Check the arguments of a call, and return it; `answer` is the type of its answer.

        Raises ValueError or TypeError for what cannot be sent.
        """
        check_arguments(**given)
        if "event" in given:
            event = given["event"]
            if not isinstance(event, str) or event not in EVENTS:
                raise ValueError(f"event is {event!r}; it must be one of {', '.join(EVENTS)}")
            given["event"] = EVENTS[event]
        if "loads" in given:
            check_each("loads", PodLoad, given["loads"])
            given["loads"] = [load.message() for load in given["loads"]]
        if "prompt" in given:
            given["prompt"] = self.prompt(given["prompt"])
        if "session" in given:
            given["session_id"] = given.pop("session")
        # The contract names all messages after their call.
        method = answer.__name__.removesuffix("Response")
        request = getattr(pb, f"{method}Request")(**given)
        # A repeated Pick with the caller's own booking id replaces the earlier one.
        return RouterCall(method, request, method != "Pick" or bool(given["booking_id"]))

    def prompt(self, prompt: AnyPrompt) -> pb.Prompt:
        """Return a prompt's message. Raises ValueError or TypeError where it cannot be sent."""
        return prompt_of(prompt).message(self._model)
