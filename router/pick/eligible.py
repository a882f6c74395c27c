"""Decides which pods may take a request, or why none may.

`router.pick.weigh` refuses a request later where no pod has the role that a part of it needs.
"""

from collections.abc import Sequence
from typing import NamedTuple

from warmpath.router.pods.table import Pod, PodTable, that_serve


class NoPodError(Exception):
    """No pod can be picked; the message has the reason."""


class Wanted(NamedTuple):
    """The pods that a request wants."""

    model: str
    lora: str = ""
    named: Sequence[str] = ()
    """Ids of pods, in a tuple; empty: all pods of the model."""
    disaggregated: bool = False
    """Whether one pod shall prefill and another one decode."""


def eligible(pods: PodTable, wanted: Wanted) -> list[Pod]:
    """Return the pods that may take a request, only those that it names unless it names none.

    They serve the model, unless its name is empty, and neither refuse requests (as a draining engine's
    /health does) nor are withheld by the source that has found them. Of these, the healthy ones take
    part if there are any, else all, as a pod's health may not be known yet; and of those, the ones that
    list the adapter if there are any. Where the request is disaggregated, this holds for the prefill's
    pods and for the decode's, each by itself.
    Raises NoPodError with the reason.
    """
    model, lora, named, disaggregated = wanted
    found = pods.of_model(model)
    if not found:
        raise NoPodError(f"no pod {_serves(model)}")
    if named:
        ids = set(named)
        found = [pod for pod in found if pod.id in ids]
        if not found:
            raise NoPodError(f"none of the {len(ids)} named pods {_serves(model)}")
    willing = [pod for pod in found if not (pod.status.refuses or pod.withheld)]
    if not willing:
        why = next((f": {pod.id}: {pod.withheld}" for pod in found if pod.withheld), "")
        raise NoPodError(f"every pod{model_phrase(model)} that may be picked refuses requests{why}")
    if not disaggregated:
        return _best(willing, lora)
    parts = [
        [pod for pod in willing if pod.role in {"both", role}] for role in ("prefill", "decode")
    ]
    return list({pod.id: pod for part in parts for pod in _best(part, lora)}.values())


def _best(willing: list[Pod], lora: str) -> list[Pod]:
    """Return the pods that go before the others."""
    serving = that_serve(willing) or willing
    # An engine may load an adapter on its first request, so pods that do not list it are a fall-back.
    able = [pod for pod in serving if not lora or lora in pod.status.models]
    return able or serving


def model_phrase(model: str) -> str:
    """Return the words " of 'MODEL'" for an error's message; empty where a request names no model."""
    return f" of {model!r}" if model else ""


def _serves(model: str) -> str:
    return f"serves {model!r}" if model else "is known"
