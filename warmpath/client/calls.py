"""The calls of the contract, made of a caller's values; the clients carry them out."""

from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from warmpath.client.checks import check_arguments, check_each
from warmpath.client.load import PodLoad
from warmpath.client.prompt import AnyPrompt, prompt_of
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.report_event import EVENTS


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
