"""The calls of the contract, made of a caller's values; the clients carry them out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from warmpath.client.checks import check_each, check_figure, check_names, check_pods, check_switches
from warmpath.client.load import PodLoad
from warmpath.client.prompt import AnyPrompt, prompt_of
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.report_event import EVENTS, ReportEvent


@dataclass(frozen=True, slots=True)
class RouterCall:
    """One call of a router."""

    method: str
    request: Message
    is_repeatable: bool = True
    """Whether it may be made again though nobody knows whether it was carried out."""


class RouterCalls:
    """Makes calls for prompts of `model`, unless they name another one."""

    def __init__(self, model: str) -> None:
        check_names(model=model)
        self._model = model or ""

    def score(
        self, prompt: AnyPrompt, *, pods: Sequence[str], strategy: str, explain: bool
    ) -> RouterCall:
        """Check the arguments and return the `Score` request for them, to be sent by a client."""
        check_pods(pods)
        check_names(strategy=strategy)
        check_switches(explain=explain)
        request = pb.ScoreRequest(
            prompt=self.prompt(prompt), pods=pods, strategy=strategy, explain=explain
        )
        return RouterCall("Score", request)

    def pick(
        self, prompt: AnyPrompt, *, shadow: bool, booking_id: str, **choosing: Any
    ) -> RouterCall:
        """Return a call of Pick, with the arguments of `_choosing` too.

        A repeated Pick with the caller's own booking id replaces the earlier one.
        """
        check_names(booking_id=booking_id)
        check_switches(shadow=shadow)
        fields = self._choosing(prompt, **choosing)
        request = pb.PickRequest(**fields, shadow=shadow, booking_id=booking_id)
        return RouterCall("Pick", request, is_repeatable=bool(booking_id))

    def explain(self, prompt: AnyPrompt, **choosing: Any) -> RouterCall:
        return RouterCall("Explain", pb.ExplainRequest(**self._choosing(prompt, **choosing)))

    def _choosing(
        self,
        prompt: AnyPrompt,
        *,
        pods: Sequence[str],
        policy: str,
        session: str,
        loads: Sequence[PodLoad],
        disaggregated: bool,
        priority: str,
        tenant: str,
    ) -> dict[str, Any]:
        check_pods(pods)
        check_names(policy=policy, session=session, priority=priority, tenant=tenant)
        check_switches(disaggregated=disaggregated)
        check_each("loads", PodLoad, loads)
        return {
            "prompt": self.prompt(prompt),
            "pods": pods,
            "policy": policy,
            "session_id": session,
            "loads": [load.message() for load in loads],
            "disaggregated": disaggregated,
            "priority": priority,
            "tenant": tenant,
        }

    def report(
        self,
        booking_id: str,
        event: ReportEvent,
        *,
        pod: str,
        loads: Sequence[PodLoad],
        **figures: Any,
    ) -> RouterCall:
        if not isinstance(event, str) or event not in EVENTS:
            raise ValueError(f"event is {event!r}; it must be one of {', '.join(EVENTS)}")
        check_names(booking_id=booking_id, pod=pod)
        for name, figure in figures.items():
            check_figure(name, figure)
        check_each("loads", PodLoad, loads)
        request = pb.ReportRequest(
            booking_id=booking_id,
            event=EVENTS[event],
            pod=pod,
            loads=[load.message() for load in loads],
            **figures,
        )
        return RouterCall("Report", request)

    def pods(self, model: str) -> RouterCall:
        check_names(model=model)
        return RouterCall("ListPods", pb.ListPodsRequest(model=model))

    def decisions(self, limit: int, *, model: str, pod: str) -> RouterCall:
        check_names(model=model, pod=pod)
        check_figure("limit", limit)
        return RouterCall(
            "ListDecisions", pb.ListDecisionsRequest(limit=limit, model=model, pod=pod)
        )

    def diagnose(self, model: str) -> RouterCall:
        check_names(model=model)
        return RouterCall("Diagnose", pb.DiagnoseRequest(model=model))

    def prompt(self, prompt: AnyPrompt) -> pb.Prompt:
        """Return a prompt's message. Raises ValueError or TypeError where it cannot be sent."""
        return prompt_of(prompt).message(self._model)
