"""Answers Pick, Explain, ListDecisions and Diagnose with messages. No sockets."""

import asyncio
import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from msgspec.structs import replace

from warmpath.indexer.ranks import Ingest
from warmpath.process.loop import MANY_RANKS, in_turns, tasked, turn_after
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.calls.parse import check_asked, check_loads
from warmpath.router.calls.replies import pick_reply
from warmpath.router.calls.report import ReportAnswerer
from warmpath.router.diagnosis.attribution import Attribution
from warmpath.router.diagnosis.blindness import Blindness
from warmpath.router.diagnosis.clients import product
from warmpath.router.diagnosis.decisions import Decisions
from warmpath.router.diagnosis.diagnose import diagnose
from warmpath.router.diagnosis.findings import RouterFacts
from warmpath.router.peers.passed_on import PassedOn
from warmpath.router.pick.eligible import Eligible, NoPodError, Wanted
from warmpath.router.pick.messages import candidate_message, source_message
from warmpath.router.pick.options import Options
from warmpath.router.pick.pick import Pick
from warmpath.router.pick.picking import Picking
from warmpath.router.pick.weigh import Ask, Choice, Traits
from warmpath.router.pods.namespaces import asked
from warmpath.router.pods.table import Pod, PodTable
from warmpath.router.prompt.bodies.fields import RawFields
from warmpath.router.prompt.limits import BadRequestError, TimeLeft
from warmpath.router.prompt.parse import LONG
from warmpath.router.prompt.plain import PlainPrompt
from warmpath.router.prompt.reader import PromptReader
from warmpath.router.prompt.token_prompt import ReadPrompt, blinded
from warmpath.router.queue.cold_starts import ColdStarts
from warmpath.router.queue.held_picks import HeldPicks
from warmpath.router.queue.request import ANYBODY, Asker, Classes
from warmpath.router.queue.standing import engine_priority, standing_message, waits, with_waiting
from warmpath.router.tracing.steps import NO_STEPS, Attributes, Step, Steps
from warmpath.router.transport.call import Answering

ENGINE: Callable[[Pod], str] = attrgetter("engine")
"""Returns the kind of a pod's engine."""
CANDIDATES_AT_ONCE = 64
"""Candidates explained before other tasks get a turn: about two milliseconds' work."""
DECISIONS_AT_ONCE = 16
"""Decisions listed before other tasks get a turn: about two milliseconds' work."""


UNNAMED = nullcontext()
"""The context of a pick whose booking has no name yet."""


class Reckoned(NamedTuple):
    """A caller's estimate of the length of a prompt that it cannot give."""

    tokens: int
    because: str
    """Why the caller cannot give the prompt."""


class PickAnswerer:
    """Answers calls about picks; `reports` answers the reports on them.

    `clock` is the ingest's; a time of `clock` + `wall_offset()` is seconds since the Unix epoch.
    """

    def __init__(
        self,
        reader: PromptReader,
        pods: PodTable,
        ingest: Ingest,
        picking: Picking,
        *,
        decisions: Decisions,
        attribution: Attribution,
        clock: Callable[[], float],
        wall_offset: Callable[[], float],
        held: HeldPicks | None = None,
        cold_starts: ColdStarts | None = None,
        steps: Steps = NO_STEPS,
        router: RouterFacts | None = None,
        is_shadow: bool = False,
        passed_on: PassedOn | None = None,
        session_in_body: bool = True,
    ) -> None:
        self._steps = steps
        self.is_shadow = is_shadow
        """Whether all picks are in shadow: another gateway decides where requests go."""
        self.held = held
        self.cold_starts = cold_starts
        self._reader = reader
        self._pods = pods
        self._eligible = Eligible(pods)
        self._picker = picking.picker
        self._loads = picking.loads
        self._decisions = decisions
        self._attribution = attribution
        self.blindness = Blindness(pods, attribution, reader.troubles)
        self.reports = ReportAnswerer(
            pods, ingest, picking, clock=clock, held=held, passed_on=passed_on
        )
        self._clock = clock
        self._wall_offset = wall_offset
        self._router = router
        self._session_in_body = session_in_body

    async def pick(
        self,
        request: pb.PickRequest,
        timeout: float,
        patience: float = math.inf,
        *,
        prompt: pb.Prompt | None = None,
        reckoned: Reckoned | None = None,
        text: bytes = b"",
        fields: RawFields | None = None,
        asker: Asker = ANYBODY,
        is_watched: bool = False,
        as_of: float | None = None,
    ) -> Pick:
        """Make a pick and book the work. Raises NoPodError if no pod can be chosen.

        `is_watched` and `as_of` are as in `Ask`; `prompt` stands in for the request's own.

        The caller enters `telling` before anything else. Tokenising takes at most `timeout` seconds,
        look-ups in Redis and the wait in the queue at most `patience` seconds from now. A text that
        could not be tokenised counts by its length, a prompt without content by `reckoned`; `text` are
        bytes that stand for the tokens of either (`InferenceRequest.text`), `fields` those of the
        prompt's body, if they are known. Raises PickEndedError if, before the pick is made, its end is
        reported or its booking id is reused.
        """
        priority = 0 if self.held is None else self.held.classes.place(request.priority, asker)
        left = TimeLeft(patience)
        check_asked(request)
        if request.loads:
            await check_loads(request.loads)
        with self.reports.underway.pick(request.booking_id) if request.booking_id else UNNAMED:
            if request.loads:
                await self.reports.observe(request.loads)
            ask = await self._read(
                request,
                timeout,
                left,
                reckoned,
                text,
                prompt=prompt,
                fields=fields,
                shadow=request.shadow or self.is_shadow,
                booking_id=request.booking_id,
                client=product(request.client),
                message=prompt or request.prompt,
                parent_session=request.parent_session_id,
                ends_session=request.session_final,
                is_watched=is_watched,
                as_of=as_of,
                request_id=asker.request_id,
                trace_id=self._steps.tracer.trace_id() if self._steps.tracer.is_on else "",
            )
            self.blindness.picked(ask.prompt.model, ask.blind, ask.unread_because)
            pick = await self._choose(ask, request, asker, priority, left)
        if self._steps.tracer.is_on:
            self._steps.tracer.note(_told(pick))
        return pick

    def pick_at_once(
        self, request: pb.PickRequest, plain: PlainPrompt, request_id: str
    ) -> Pick | None:
        """Make a pick as `pick` does, if that waits for nothing and takes less than a millisecond.

        The result is None otherwise, and then nothing has changed. `plain` stands in for the request's
        prompt.
        """
        if (
            self._picker.is_asking
            or self.held is not None
            or self._steps.tracer.is_on
            or request.booking_id
            or request.loads
            or len(plain.ids) > LONG
        ):
            return None
        check_asked(request)
        try:
            ask = self._ask(
                request,
                self._reader.read_plain(plain),
                shadow=request.shadow or self.is_shadow,
                parent_session=request.parent_session_id,
                ends_session=request.session_final,
                client=product(request.client),
                request_id=request_id,
            )
        except NoPodError as error:
            if self.may_wait(error):
                return None
            raise
        if len(ask.field.ranks) > MANY_RANKS:
            return None
        self.blindness.picked(ask.prompt.model, None)
        return self._picker.reserve(ask, self._clock())

    @property
    def classes(self) -> Classes | None:
        """The classes of requests that wait; None: none waits."""
        waits = self.cold_starts if self.held is None else self.held
        return None if waits is None else waits.classes

    def may_wait(self, error: NoPodError) -> bool:
        """Return whether a request that got this error may wait for a pod (`for_a_pod`)."""
        return self.cold_starts is not None and self.cold_starts.may_wait(error)

    async def for_a_pod(
        self, error: NoPodError, request: pb.PickRequest, asker: Asker, left: float, size: int = 0
    ) -> None:
        """Return once the pick that got this error may be tried again, within `left` seconds.

        `size` are bytes that the request keeps beside its message. Raises as `ColdStarts.wait`.
        """
        if self.cold_starts is None or request.shadow or self.is_shadow:
            raise error
        await self.cold_starts.wait(
            error,
            asker,
            priority=request.priority,
            tenant=request.tenant,
            size=size + request.ByteSize(),
            left=left,
        )

    async def report(
        self, request: pb.ReportRequest, timeout: float, patience: float
    ) -> pb.ReportResponse:
        """Answer Report; for a request that went out without a pick, make one in shadow first."""
        reports = await self.reports.checked(request)
        if request.HasField("prompt"):
            if not self.is_shadow:
                raise BadRequestError("prompt", "is only for a router in shadow: serve --shadow")
            if request.event != pb.ReportRequest.STARTED or not request.pod:
                raise BadRequestError("prompt", "needs the event STARTED, and a pod")
            asked = pb.PickRequest(prompt=request.prompt, booking_id=request.booking_id)
            with self.telling(await self.pick(asked, timeout, patience)):
                pass
        return await self.reports.report(request, reports)

    def telling(self, pick: Pick, call: Answering | None = None) -> "Telling":
        """Within the context the caller is told of a pick; if that fails, the pick is withdrawn.

        The pick ends, too, if the transport finds later that the caller of `call` has not read the
        answer (`Call.if_gone`; gRPC's own server cannot find that).
        """
        return Telling(self, pick, call)

    def told(self, pick: Pick, call: Answering | None, *, is_told: bool) -> None:
        """Settle a pick, or withdraw it."""
        now = self._clock()
        if not is_told:
            self._picker.withdraw(pick, now)
            return
        self._picker.settle(pick, now)
        if call is not None:
            call.if_gone(partial(self._gone, pick.booking_id, pick.number))

    def _gone(self, booking_id: str, number: int) -> None:
        self._picker.cancel(booking_id, number, self._clock())
        if self.held is not None:
            self.held.news()

    async def _choose(
        self, ask: Ask, request: pb.PickRequest, asker: Asker, priority: int, left: TimeLeft
    ) -> Pick:
        if self.held is not None and not ask.shadow:
            return await self.held.choose(ask, request, asker, priority, left.seconds())
        return self._picker.reserve(ask, self._clock())

    def response(self, pick: Pick) -> bytes:
        """Return the PickResponse of a pick that is not settled."""
        begun, offset = self._steps.begin(), self._wall_offset()
        priority = engine_priority(pick, self._picker.precedence, offset)
        response = pick_reply(pick, priority, offset)
        self._steps.took(Step.REPLY, begun)
        return response

    async def explain(
        self, request: pb.ExplainRequest, timeout: float, patience: float = math.inf
    ) -> pb.ExplainResponse:
        """Answer Explain; books nothing. Raises NoPodError. Times are as in `pick`."""
        priority = 0 if self.held is None else self.held.classes.place(request.priority)
        check_asked(request)
        await check_loads(request.loads)
        await self.reports.observe(request.loads)
        ask = await self._read(request, timeout, TimeLeft(patience))
        now, standing = self._clock(), None
        if self.held is None:
            choice = self._picker.weigh(ask, now)
        else:
            waiting = self.held.enters(ask, request, ANYBODY, priority)
            standing = self.held.queue.standing(waiting, now)
            choice = standing.choice
        response = pb.ExplainResponse(
            prompt_tokens=ask.tokens,
            policy=choice.policy,
            utilisation=choice.utilisation,
            reason=f"{choice.reason}{waits(standing)}{self._stuck(choice, now)}",
            reckoned_tokens=ask.unread,
            reckoned_because=ask.unread_because,
            standing=standing_message(standing),
            source=choice.source and source_message(choice.source),
        )
        for messages, options in (
            (response.candidates, choice.options),
            (response.decode_candidates, choice.decode),
        ):
            await asyncio.sleep(0)
            async for one in in_turns(options, CANDIDATES_AT_ONCE):
                parts = self._loads.explain(*one.name, now)
                messages.append(candidate_message(one, self._wall_offset(), parts))
        return response

    def _stuck(self, choice: Choice, now: float) -> str:
        """Return the sentence, after a space, that names ranks which the choice leaves out."""
        parts = [part for part in (choice.options, choice.decode) if isinstance(part, Options)]
        names = list(dict.fromkeys(name for part in parts for name in part.field.left_out))
        if not names:
            return ""
        (pod, number), more = names[0], len(names) - 1
        seconds = self._loads.stuck_seconds(pod, number, now)
        others = f", as are {more} more" if more else ""
        return (
            f" Rank {number} of {pod}, which has answered nothing for {seconds:.0f} s, is left out"
            f"{others}."
        )

    async def list_decisions(self, request: pb.ListDecisionsRequest) -> pb.ListDecisionsResponse:
        listed = self._decisions.listed(request)
        if self.held is not None:
            offset = self._wall_offset()
            listed = with_waiting(listed, self.held.queue, request, self._clock(), offset)
        response = pb.ListDecisionsResponse()
        async for one in in_turns(listed, DECISIONS_AT_ONCE):
            response.decisions.append(one)
        return response

    async def diagnose(self, request: pb.DiagnoseRequest) -> pb.DiagnoseResponse:
        return await diagnose(
            request.model,
            self._pods,
            self._attribution,
            self._loads,
            blind=self.blindness.spots(),
            router=self._router,
            clock=self._clock,
        )

    async def _read(
        self,
        request: pb.PickRequest | pb.ExplainRequest,
        timeout: float,
        left: TimeLeft,
        reckoned: Reckoned | None = None,
        text: bytes = b"",
        *,
        prompt: pb.Prompt | None = None,
        fields: RawFields | None = None,
        **named: Any,
    ) -> Ask:
        """Return the request to place; `named` are the fields of it that only Pick has."""
        read = await self._reader.read(
            prompt or request.prompt, timeout, may_reckon=True, fields=fields
        )
        ask = self._ask(request, read, reckoned, text, **named)
        if self._picker.is_asking:
            await tasked()
            await self._picker.refresh(ask, left.seconds())
        await turn_after(len(ask.field.ranks))
        return ask

    def _ask(
        self,
        request: pb.PickRequest | pb.ExplainRequest,
        read: ReadPrompt,
        reckoned: Reckoned | None = None,
        text: bytes = b"",
        **named: Any,
    ) -> Ask:
        serving = self._pods.of_model(read.prompt.model)
        ids = set(request.pods)
        pods = [pod for pod in serving if pod.id in ids] if ids else serving
        prompt, blind = read.apart(map(ENGINE, pods)), read.blind
        if text and (reckoned or prompt.is_blind):
            prompt, blind = blinded(prompt, text), blind or "body"
        elif text and prompt.text:
            prompt = replace(prompt, text=text)
        asked(prompt, pods)
        named_pods = tuple(sorted(ids)) if ids else ()
        wanted = Wanted(prompt.model, prompt.lora, named_pods, request.disaggregated)
        return Ask(
            prompt,
            self._eligible(wanted),
            wanted,
            policy=request.policy,
            session=request.session_id or (read.session if self._session_in_body else ""),
            tenant=request.tenant,
            ids=b"" if prompt.is_blind else prompt.ids,
            traits=Traits(
                read.form, bool(prompt.lora), bool(prompt.cache_salt), bool(prompt.items)
            ),
            unread=reckoned.tokens if reckoned else read.unread,
            unread_because=reckoned.because if reckoned else read.unread_because,
            blind=blind,
            **named,
        )


class Telling:
    """The context of `PickAnswerer.telling`; a generator would take several times as long."""

    __slots__ = ("_answerer", "_call", "_pick")

    def __init__(self, answerer: PickAnswerer, pick: Pick, call: Answering | None) -> None:
        self._answerer = answerer
        self._pick = pick
        self._call = call

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, *_: object) -> None:
        self._answerer.told(self._pick, self._call, is_told=kind is None)


def _told(pick: Pick) -> Attributes:
    return {
        "warmpath.model": pick.model,
        "warmpath.policy": pick.choice.policy,
        "warmpath.booking_id": pick.booking_id,
        "warmpath.pod": pick.picked.pod,
        "warmpath.rank": pick.picked.number,
        "warmpath.prompt_tokens": pick.prompt_tokens,
        "warmpath.held_tokens": pick.expected.held,
        "warmpath.waited_seconds": pick.waited,
    }
