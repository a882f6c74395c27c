"""The place of a Pick's request in the queue: its class, its tenant, and how long it may wait."""

import math
from collections.abc import Collection
from typing import NamedTuple, cast

from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.pick.weigh import Ask
from warmpath.router.prompt.token_prompt import TokenPrompt
from warmpath.router.queue.classes import Classes
from warmpath.router.queue.request import Entering, Wanted

ANSWER_SHARE = 0.1
"""Share of the time until the caller's deadline that is kept for the answer; the wait ends before it."""
MOST_ANSWER_SECONDS = 0.5
"""Most seconds that are kept for the answer."""


class Asker(NamedTuple):
    """The caller of Pick."""

    client: str = ""
    """Its connection."""
    context: object = None
    """The context of its call; None: there is none, and it may name every class."""
    request_id: str = ""
    """Its name for the request; empty: none."""


ANYBODY = Asker()


class QueuePlace(NamedTuple):
    """The properties of a request that matter in the queue only."""

    client: str
    """Its connection."""
    priority: int
    """Its class."""
    tenant: str
    named: tuple[str, ...]
    """The pods that it names."""
    size: int
    """Bytes of its message."""
    caller: str = ""
    """Who sent it, as far as the router knows."""

    def entering(self, ask: Ask, now: float, left: float = math.inf) -> Entering:
        """Return the entry of a request that arrives `now`; its caller waits for `left` seconds more."""
        prompt = cast("TokenPrompt", ask.prompt)
        answering = min(ANSWER_SHARE * left, MOST_ANSWER_SECONDS)
        return Entering(
            ask,
            Wanted(prompt.model, prompt.lora, self.named, ask.disaggregated),
            now,
            now + left - answering,
            self.priority,
            self.tenant,
            # About a byte for each token: the keys of its blocks.
            self.size + ask.tokens,
            self.caller,
        )


def place_of(
    request: pb.PickRequest | pb.ExplainRequest,
    client: str,
    classes: Classes,
    may: Collection[str] | None,
    caller: str = "",
) -> QueuePlace:
    """Return a request's place in the queue. Raises BadRequestError.

    `may` names the classes that its caller may use, None for all of them.
    """
    return QueuePlace(
        client,
        classes.place(request.priority, may),
        request.tenant,
        tuple(sorted({*request.pods})),
        request.ByteSize(),
        caller,
    )
