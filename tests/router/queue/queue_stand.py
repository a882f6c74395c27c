"""A queue over a picker whose reports a test makes."""

from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

from tests.router.consistent import check
from tests.router.pick.picker_parts import KeyedPrompt, Parts
from warmpath.router.config.schema import QueueTable
from warmpath.router.pick.calibration import USUAL_SHARING
from warmpath.router.pick.eligible import Field, NoPodError, Wanted, field_of
from warmpath.router.pick.pick import Pick
from warmpath.router.pick.weigh import Choice
from warmpath.router.pods.table import Pod
from warmpath.router.queue.lag import LEAST
from warmpath.router.queue.queue import MOST_LOOKS, Queue
from warmpath.router.queue.request import Release, Waiting

BASE = 0.02
TOKEN = 70e-6
OWN_BASE = (1 - USUAL_SHARING) * BASE
"""The part of BASE that those behind a request wait for."""
HOLD = QueueTable().hold_seconds


class Sent(NamedTuple):
    waiting: Waiting
    placed: Pick
    choice: Choice


class QueueStand:
    """A queue; `hears` (are first tokens reported?) and `settings` are its own, `pods` are numbered from 0."""

    def __init__(
        self,
        pods: int = 2,
        *,
        hears: bool = True,
        knows_lag: bool = True,
        most_looks: int = MOST_LOOKS,
        **settings: object,
    ) -> None:
        self.parts = Parts(pods, prefill_context_seconds=0.0)
        self.hears = hears
        self.pods: Sequence[Pod] = self.parts.pods
        self.queue = Queue(
            self.parts.picking,
            QueueTable(**settings),  # type: ignore[arg-type]
            eligible=self.eligible,
            most_looks=most_looks,
        )
        self.queue._bookings = self  # type: ignore[assignment]
        self.lag = self.queue.lag
        self._keys = count(1_000_000, 10_000)
        self.release = Release({}, {}, float("inf"))
        """The result of the last release."""
        self.sent: list[Sent] = []
        """What it has sent."""
        for _ in range(LEAST if knows_lag else 0):
            self.enter(1)
            [sent] = self.sent
            self.first_token(sent, after=BASE)
            self.parts.picker.ended(sent.placed.booking_id, "finished", self.parts.now)

    @property
    def hears_first_tokens(self) -> bool:
        return self.hears

    def eligible(self, wanted: Wanted) -> Field:
        found = [pod for pod in self.pods if not wanted.named or pod.id in wanted.named]
        if not found:
            raise NoPodError("no pod is left")
        return field_of(found)

    def entering(
        self,
        tokens: int = 10_000,
        *,
        named: Sequence[str] = (),
        lora: str = "",
        prompt: KeyedPrompt | None = None,
        **fields: object,
    ) -> Waiting:
        """Return a request with a prompt of its own of `tokens`, none of them cached."""
        wanted = Wanted("m", lora, named=tuple(named))
        first = next(self._keys)
        prompt = prompt or KeyedPrompt(range(first, first + tokens // 16), tokens)
        ask = self.parts.ask(prompt, pods=self.eligible(wanted).of, wanted=wanted)
        return Waiting(ask, self.parts.now, **fields)  # type: ignore[arg-type]

    def enter(self, tokens: int = 10_000, **fields: object) -> Waiting:
        """Let a request enter, and release."""
        waiting = self.entering(tokens, **fields)  # type: ignore[arg-type]
        self.queue.enter(waiting, self.parts.now)
        self.look()
        return waiting

    def look(self, after: float = 0.0) -> Sequence[Sent]:
        """Release after some seconds, settle what goes, and return it."""
        self.parts.now += after
        self.release = self.queue.release(self.parts.now)
        self.sent = [Sent(*one, one[1].choice) for one in self.release.sent.items()]
        for sent in self.sent:
            self.parts.picker.settle(sent.placed, self.parts.now)
        check(self.queue)
        check(self.parts.picking)
        return self.sent

    def first_token(self, sent: Sent, after: float = 0.0) -> Sequence[Sent]:
        """Report a first token after some seconds, and release."""
        self.parts.now += after
        assert self.parts.picker.first_token(sent.placed.booking_id, self.parts.now)
        return self.look()

    def fill(self, tokens: int = 30_000) -> list[Sent]:
        """Give every pod a prefill of this number of tokens."""
        sent = []
        for _ in self.pods:
            self.enter(tokens)
            sent += self.sent
        assert len({one.placed.went for one in sent}) == len(self.pods)
        return sent
