"""Makes the picks that exchanges ask for: an HTTP request in, endpoints out."""

import math
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from functools import partial

from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.calls.pick import PickAnswerer, Reckoned
from warmpath.router.config.schema import EndpointPickerTable, PickerHeadersTable
from warmpath.router.endpoint_picker.events import (
    Endpoint,
    NeedsExchangeError,
    Picked,
    UnmatchedSubsetError,
    WantPick,
)
from warmpath.router.inference_api.model_name import Renaming, with_model
from warmpath.router.inference_api.reader import InferenceReader
from warmpath.router.inference_api.request import InferenceRequest
from warmpath.router.pick.eligible import NoPodError
from warmpath.router.pick.options import MOST_CANDIDATES
from warmpath.router.pick.pick import Pick
from warmpath.router.pods.llmd_objects import LlmdObjects, choose
from warmpath.router.pods.table import Pod, PodTable, endpoint
from warmpath.router.prompt.bodies.session import fit_session
from warmpath.router.prompt.limits import MOST_TENANT_BYTES, BadRequestError
from warmpath.router.prompt.models import ModelTable, UnknownModelError
from warmpath.router.prompt.truncate import CHARS_PER_TOKEN
from warmpath.router.queue.request import ANYBODY, Asker
from warmpath.router.tracing.steps import NO_STEPS, Step, Steps
from warmpath.router.transport.call import Answering
from warmpath.scorer.prefill import PrefillModel

MOST_AGENT = 256
"""Characters of a User-Agent that are read: its product comes first."""
YES = ("true", "1")
"""The values of a header that say yes."""


def pods_at(pods: Iterable[Pod], subset: frozenset[str]) -> list[str]:
    """Return the ids of the pods at these endpoints; an endpoint without a port means all its ports."""
    wanted = {endpoint(one) for one in subset}
    found = []
    for pod in pods:
        address = endpoint(pod.address)
        if address in wanted or address.rpartition(":")[0] in wanted:
            found.append(pod.id)
    return found


def engine_of(models: ModelTable, pods: PodTable, name: str) -> str:
    """Return the kind of engine that serves a model; empty if no engine or several kinds serve it.

    `name` is any name of the model; where no model has it, all pods count.
    """
    try:
        model, _ = models.resolve(name)
    except UnknownModelError:
        kinds = {pod.engine for pod in pods}
    else:
        kinds = {pod.engine for pod in pods.of_model(model.name)}
    return kinds.pop() if len(kinds) == 1 else ""


def first_of(headers: Mapping[str, str], names: Iterable[str]) -> str:
    """Return the value of the first of these headers that has one; empty if none has."""
    return next(filter(None, map(headers.get, names)), "")


def name_session(
    request: pb.PickRequest, headers: Mapping[str, str], ours: PickerHeadersTable
) -> None:
    """Set a request's session, its parent and its end, as the request's headers tell them."""

    def told(names: Iterable[str]) -> str:
        return fit_session(first_of(headers, names))

    if session := told(ours.session):
        request.session_id = session
        if (parent := told(ours.parent_session)) != session:
            request.parent_session_id = parent
        request.session_final = told(ours.session_final) in YES


def only_model(pods: PodTable) -> str:
    """Return the model that all pods serve; empty if they serve several."""
    models = {pod.model for pod in pods}
    return models.pop() if len(models) == 1 else ""


class EndpointPicks:
    """Picks endpoints for HTTP requests.

    `prefill` predicts the time that cached tokens save. A text is tokenised for `tokenize_seconds`.
    """

    def __init__(
        self,
        picks: PickAnswerer,
        reader: InferenceReader,
        pods: PodTable,
        models: ModelTable,
        config: EndpointPickerTable,
        *,
        prefill: PrefillModel,
        tokenize_seconds: float,
        steps: Steps = NO_STEPS,
    ) -> None:
        self._steps = steps
        self._picks = picks
        self.is_shadow = picks.is_shadow
        """Whether no pick may decide where a request goes."""
        self._reader = reader
        self._pods = pods
        self._models = models
        self._rewrites: Mapping[str, str] = config.rewrites
        self.objects = LlmdObjects()
        self._most = 1 + config.fall_backs
        self._ours = ours = config.headers
        self._of_sessions = frozenset(filter(None, ours.session))
        self._session_in_body = config.session_in_body
        self._prefill = prefill
        self.tokenize_seconds = tokenize_seconds

    async def pick(
        self,
        want: WantPick,
        patience: float,
        asker: Asker = ANYBODY,
        answering: Answering | None = None,
    ) -> tuple[Picked, AbstractContextManager[None]]:
        """Pick, and book the work, within `patience` seconds from now.

        The caller replies to the gateway within the context that comes with the pick, before anything
        else; if that fails, or if the reply turns out not to be read (`answering`), the pick is
        withdrawn. Raises as `make`.
        """
        made, body, renaming = await self.make(want, patience, asker)
        picked = self._picked(made, body if renaming else None, renaming)
        return picked, self._picks.telling(made, answering)

    async def make(
        self, want: WantPick, patience: float, asker: Asker = ANYBODY
    ) -> tuple[Pick, bytes, Renaming | None]:
        """Make a pick within `patience` seconds; return it, and the body with the name of its model.

        Raises UnmatchedSubsetError, NoPodError if no pod can be picked, and NeedsExchangeError.
        """
        body, renaming, ours, headers = want.body, None, self._ours, want.headers
        read = await self._read(want, body)
        named = first_of(headers, ours.rewrite)
        target = named or self._rewrites.get(read.model, "") or self._chosen(read, want, asker)
        if target and read.model and target != read.model:
            if want.is_one_call:
                raise NeedsExchangeError
            renaming = Renaming(target, read.model)
            body = await with_model(body, target)
            read = await self._read(want, body)
        subset = None if want.subset is None else pods_at(self._pods, want.subset)
        if want.subset is not None and not subset:
            raise UnmatchedSubsetError(len(want.subset))
        prompt, reckoned = await self._prompt(read, body, named)
        request = pb.PickRequest(pods=subset, shadow=want.is_shadow)
        if ours.prefill and not want.is_shadow:
            self._split(request, prompt.model)
        if not self._of_sessions.isdisjoint(headers):
            name_session(request, headers, ours)
        if read.session and self._session_in_body and not request.session_id:
            request.session_id = read.session
        self._name_place(request, headers, asker)
        request.client = headers.get("user-agent", "")[:MOST_AGENT]
        # Where the prompt's body is for another model's name than the client's, it is read anew.
        fields = None if prompt.lora else read.fields
        pick = partial(
            self._picks.pick, request, min(self.tokenize_seconds, patience), patience,
            asker=asker, is_watched=True, as_of=want.as_of,
        )  # fmt: skip
        try:
            made = await pick(prompt=prompt, reckoned=reckoned, text=read.text, fields=fields)
        except BadRequestError as error:
            # Load alone decides for a prompt that the router refuses.
            reckoned = _by_length(prompt.ByteSize(), str(error))
            made = await pick(prompt=pb.Prompt(model=prompt.model), reckoned=reckoned)
        return made, body, renaming

    def may_wait(self, error: NoPodError) -> bool:
        """Return whether the request that got this error may wait for a pod."""
        return self._picks.may_wait(error)

    async def for_a_pod(self, error: NoPodError, want: WantPick, asker: Asker) -> None:
        """Return once the pick that got this error may be tried again. Raises as `ColdStarts.wait`."""
        request = pb.PickRequest(shadow=want.is_shadow)
        self._name_place(request, want.headers, asker)
        await self._picks.for_a_pod(error, request, asker, math.inf, len(want.body))

    def _name_place(
        self, request: pb.PickRequest, headers: Mapping[str, str], asker: Asker
    ) -> None:
        """Set a request's tenant and class, as its headers name them."""
        ours = self._ours
        tenant = first_of(headers, ours.tenant)
        if len(tenant.encode()) <= MOST_TENANT_BYTES:
            request.tenant = tenant
        if (classes := self._picks.classes) is not None:
            objective = first_of(headers, ours.objective)
            above = self.objects.priorities.get(objective, 0)
            named = headers.get(ours.priority, "")
            request.priority = classes.named(named, asker, objective, above)

    def _chosen(self, read: InferenceRequest, want: WantPick, asker: Asker) -> str:
        """Return the model that llm-d's objects choose for a session or else a request; empty: none."""
        if not (targets := self.objects.targets(read.model)):
            return ""
        session = fit_session(first_of(want.headers, self._ours.session))
        if not session and self._session_in_body:
            session = read.session
        return choose(targets, (session or asker.request_id).encode() or want.body)

    def _split(self, request: pb.PickRequest, model: str) -> None:
        """Ask for two pods where some only prefill; while none of these is healthy, for the others."""
        if not model:
            return
        pods = self._pods.of_model(self._models.resolve(model)[0].name)
        named = [pod for pod in pods if not request.pods or pod.id in request.pods]
        prefilling = [pod for pod in named if pod.role == "prefill"]
        if any(pod.serves for pod in prefilling):
            request.disaggregated = True
        elif prefilling:
            request.pods[:] = [pod.id for pod in named if pod.role != "prefill"]

    async def _read(self, want: WantPick, body: bytes) -> InferenceRequest:
        begun, named = self._steps.begin(), want.headers.get
        read = await self._reader.read(
            named(":path", ""), body, named("content-type", ""), named("content-encoding", "")
        )
        self._steps.took(Step.BODY, begun)
        return read

    async def _prompt(
        self, read: InferenceRequest, body: bytes, named: str
    ) -> tuple[pb.Prompt, Reckoned | None]:
        """Return a prompt; one without a model, which any pod may take, if no pod serves the model.

        A body that names none, as SGLang's /generate never does, is for the model that the header
        `named`, or else for the one that all pods serve.
        """
        prompt, reckoned = read.prompt, None
        if prompt is None:
            prompt, reckoned = pb.Prompt(), Reckoned(read.estimated_tokens, read.problem)
        name = prompt.model = read.model or named or only_model(self._pods)
        try:
            model, _ = self._models.resolve(name)
            if not read.model:
                # The engine reads only the body, and takes its base model where that names none.
                prompt.model = model.name
        except UnknownModelError as error:
            # Engines load adapters that no configuration has.
            listing = next((pod for pod in self._pods if name and name in pod.status.models), None)
            if listing is None:
                return pb.Prompt(), reckoned or _by_length(len(body), str(error))
            prompt.model = listing.model
            if not read.model:
                return prompt, reckoned
            prompt.lora = name
            for form in ("chat_body", "completions_body"):
                if prompt.HasField(form):
                    # The router knows only the model's name; the engine still gets the body as it came.
                    setattr(prompt, form, await with_model(body, listing.model))
        return prompt, reckoned

    def _picked(self, made: Pick, body: bytes | None, renaming: Renaming | None) -> Picked:
        choice, tokens, is_shadow = made.choice, made.prompt_tokens, made.shadow
        options = choice.decode or choice.options
        seats, places = options.field.seats, options.order
        first, most_held = seats[places[0]], max(0, tokens - 1)
        engine_rank = None if first.is_alone else first.engine_rank
        if is_shadow:
            # A gateway that chooses itself may take any of them.
            kept = options[:]
        elif engine_rank is None:
            kept = options.kept
        else:
            # A gateway sends fall-backs the same headers, and a pod without this rank refuses them.
            kept = options.at([one for one in places if seats[one].engine_rank == engine_rank])
        prefill, matches = "", kept.matches
        if made.picked.pod != first.name.pod:
            prefilling, where = choice.options, choice.options.order[0]
            prefill = endpoint(prefilling.field.seats[where].address)
            matches = [prefilling.match(where)] * len(matches)
        endpoints: dict[str, Endpoint] = {}
        is_known = choice.ask.prompt.tokens > 0
        most = None if is_shadow else MOST_CANDIDATES
        for one, match in zip(kept.seats[:most], matches, strict=False):
            address = endpoint(one.address)
            # Pods not known to be healthy are no fall-backs, unless no other pod is left.
            if address in endpoints or (endpoints and not one.serves and not is_shadow):
                continue
            cached, saved = None, 0.0
            if is_known:
                cached = min(match.matched_tokens, most_held)
                if cached:
                    saved = self._prefill.saved(cached)
            endpoints[address] = Endpoint(*one.name, cached, saved)
            if len(endpoints) == self._most and not is_shadow:
                break
        return Picked(made.booking_id, endpoints, engine_rank, prefill, body, renaming)


def _by_length(size: int, because: str) -> Reckoned:
    return Reckoned(-(-size // CHARS_PER_TOKEN), because)
