"""The requests of the contract's calls, made of a caller's values: prompts, loads and names.

A prompt is given as token ids, a text, or the body of an OpenAI request. Numbers, names, lists and
switches are checked here, as protobuf would refuse them without the name of the field.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from numbers import Integral, Real
from operator import index
from typing import Any

from google.protobuf.message import Message

from warmpath.indexer.keys.key import TOKEN_BYTES, Item, pack_tokens
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.report_event import EVENTS
from warmpath.router.load.engine_metrics import problem_of

MOST_FIGURE = (1 << 32) - 1

FIGURES = frozenset({"cached_tokens", "prompt_tokens", "output_tokens", "rank", "limit"})
SWITCHES = frozenset({"explain", "shadow", "disaggregated", "session_final"})
OTHERS = frozenset({"prompt", "loads", "event"})
"""Arguments with a check of their own."""


def check_arguments(**given: Any) -> None:
    """Raise TypeError or ValueError for an unfit argument, by its name; any not listed is a text."""
    for name, value in given.items():
        if name in FIGURES:
            check_figure(name, value)
        elif name in SWITCHES:
            if value is not None and not isinstance(value, int):
                raise TypeError(f"{name} is of type {type(value).__name__}, not bool")
        elif name == "pods":
            if isinstance(value, str):
                # It would be a pod per letter.
                raise TypeError("pods is of type str; give a list of pods' ids")
            if value is not None:
                check_each("pods", str, value)
        elif name not in OTHERS:
            check_names(**{name: value})


def check_figure(name: str, value: int | None) -> None:
    """Raise ValueError, naming the field and the limit, unless a number is 0 to MOST_FIGURE or None.

    Raises TypeError for what is no integer.
    """
    if value is None:
        return
    try:
        index(value)
    except TypeError:
        raise TypeError(f"{name} is of type {type(value).__name__}, not int") from None
    if not 0 <= value <= MOST_FIGURE:
        raise ValueError(f"{name} is {value}; it must be 0 to {MOST_FIGURE}")


def check_names(**names: object) -> None:
    """Raise TypeError for a name that is neither text nor None, ValueError for a lone surrogate."""
    for argument, name in names.items():
        if name is None:
            continue
        if not isinstance(name, str):
            raise TypeError(f"{argument} is of type {type(name).__name__}, not str")
        check_unicode(argument, name)


def check_unicode(field: str, text: str) -> None:
    """Raise ValueError for a text with a lone surrogate, which no encoding has."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        said = f"{field} is not Unicode text: a lone surrogate at character {error.start}"
        raise ValueError(said) from None


def check_each(field: str, kind: type, values: object) -> None:
    """Raise TypeError, naming `field`, unless `values` is a collection of values of type `kind`."""
    if not isinstance(values, Collection):
        raise TypeError(f"{field} is of type {type(values).__name__}, not a list")
    for position, value in enumerate(values):
        if not isinstance(value, kind):
            said = f"{type(value).__name__}, not {kind.__name__}"
            raise TypeError(f"{field}[{position}] is of type {said}")


def check_numbers(kind: type = Real, **numbers: object) -> None:
    """Raise TypeError unless all are numbers of `kind`: `numbers.Real` or `numbers.Integral`."""
    for argument, number in numbers.items():
        if not isinstance(number, kind):
            said = f"{type(number).__name__}, not {'a number' if kind is Real else 'int'}"
            raise TypeError(f"{argument} is of type {said}")


CONTENTS = ("tokens", "text", "chat_body", "completions_body")


@dataclass(frozen=True, slots=True)
class Prompt:
    r"""A prompt; exactly one of its first four fields is given.

    Raises ValueError for any other number of them, and TypeError for a field of the wrong type.

    >>> Prompt([1, 2, 3]).packed_tokens()
    b'\x01\x00\x00\x00\x02\x00\x00\x00\x03\x00\x00\x00'
    """

    # None of the four is shown in a log or a traceback.
    tokens: Sequence[int] | bytes | None = field(default=None, repr=False)
    """Token ids; as bytes, 4 each, little-endian."""
    text: str | None = field(default=None, repr=False)
    chat_body: bytes | None = field(default=None, repr=False)
    """The JSON body of a request to /v1/chat/completions."""
    completions_body: bytes | None = field(default=None, repr=False)
    """The JSON body of a request to /v1/completions."""
    model: str = ""
    """The model's or adapter's name; empty: the body's, or that of the client or index."""
    lora: str = ""
    """The adapter's name; empty for none."""
    cache_salt: str = ""
    extra_key: str = ""
    """SGLang's `extra_key`; other engines ignore it."""
    items: Sequence[Item] = ()
    """Multimodal items, in the order of their placeholder tokens."""

    def __post_init__(self) -> None:
        given = [name for name in CONTENTS if getattr(self, name) is not None]
        if len(given) != 1:
            said = " and ".join(given) or "no content"
            raise ValueError(f"a prompt has {said}; give one of {', '.join(CONTENTS)}")
        [name] = given
        content = getattr(self, name)
        if name == "text" and not isinstance(content, str):
            raise TypeError(f"text is of type {type(content).__name__}, not str")
        if name == "tokens" and isinstance(content, str):
            raise TypeError("tokens is of type str; give a text as `text`")
        if name.endswith("_body") and not isinstance(content, bytes):
            raise TypeError(f"{name} is of type {type(content).__name__}, not bytes")
        check_names(
            model=self.model, lora=self.lora, cache_salt=self.cache_salt, extra_key=self.extra_key
        )
        check_each("items", Item, self.items)

    def packed_tokens(self) -> bytes:
        """Return the token ids, packed. Raises ValueError for an invalid one, and for another form."""
        if self.tokens is None:
            raise ValueError("tokens: the prompt has none")
        if not isinstance(self.tokens, bytes):
            try:
                return pack_tokens(self.tokens)
            except ValueError as error:
                raise ValueError(f"tokens: {error}") from error
        if len(self.tokens) % TOKEN_BYTES:
            raise ValueError(f"tokens: {len(self.tokens)} bytes; token ids take {TOKEN_BYTES} each")
        return self.tokens

    def message(self, model: str) -> pb.Prompt:
        """Return the contract's message; `model` is used where neither prompt nor body can name one.

        Raises ValueError for a token id or a figure of an item that cannot be.
        """
        for item in self.items:
            check_figure("items: offset", item.offset)
            check_figure("items: length", item.length)
        has_body = self.chat_body is not None or self.completions_body is not None
        if self.text is not None:
            check_unicode("text", self.text)
        return pb.Prompt(
            token_ids_packed=None if self.tokens is None else self.packed_tokens(),
            text=self.text,
            chat_body=self.chat_body,
            completions_body=self.completions_body,
            model=self.model or ("" if has_body else model),
            lora=self.lora,
            cache_salt=self.cache_salt,
            extra_key=self.extra_key,
            multimodal=[
                pb.MultimodalItem(hash=item.hash, offset=item.offset, length=item.length)
                for item in self.items
            ],
        )


AnyPrompt = Prompt | Sequence[int] | str
"""A prompt, or only its token ids (as bytes: packed), or only its text."""


def prompt_of(given: AnyPrompt) -> Prompt:
    """Return the Prompt for what a caller gave: a Prompt, token ids or a text."""
    if isinstance(given, Prompt):
        return given
    return Prompt(text=given) if isinstance(given, str) else Prompt(given)


def prompt_of_request(
    prompt: AnyPrompt | None,
    messages: Sequence[Mapping[str, Any]] | None,
    tokens: Sequence[int] | bytes | None,
    model: str,
    default: str,
) -> pb.Prompt:
    """Return the message for a request's prompt, given in one form or, to pick by load, in none.

    `default` is the model if neither `model` nor the prompt names one. Raises ValueError for several
    forms and for an impossible value, TypeError for a wrong type.
    """
    forms = {"prompt": prompt, "messages": messages, "tokens": tokens}
    given = [name for name, form in forms.items() if form is not None]
    if len(given) > 1:
        raise ValueError(f"a request has {' and '.join(given)}; give at most one of them")
    check_names(model=model)
    if messages is not None:
        check_each("messages", Mapping, messages)
        prompt = Prompt(chat_body=json.dumps({"messages": messages}).encode(), model=default)
    elif tokens is not None:
        prompt = Prompt(tokens)
    message = pb.Prompt(model=default) if prompt is None else prompt_of(prompt).message(default)
    message.model = model or message.model
    return message


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
    """Requests in the engine's queue."""
    kv_usage: float = 0.0
    """Share of the rank's KV cache that requests hold, 0 to 1."""
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


def request_of(answer: type[Message], model: str, given: dict[str, Any]) -> Message:
    """Check the arguments of a call, and return its request; `answer` is the type of its answer.

    `model` is that of prompts which name none. Raises ValueError or TypeError for what cannot be sent.
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
        prompt = given["prompt"]
        if not isinstance(prompt, pb.Prompt):
            given["prompt"] = prompt_of(prompt).message(model)
    for name in ("session", "parent_session"):
        if name in given:
            given[f"{name}_id"] = given.pop(name)
    # The contract names all messages after their call.
    request: Message = getattr(pb, answer.__name__.replace("Response", "Request"))(**given)
    return request
