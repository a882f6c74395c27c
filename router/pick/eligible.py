"""Which pods may take a request, and why none may."""

from collections.abc import Sequence

from router.pick.weigh import NoPodError
from router.pods.table import Pod, PodTable, that_serve


def eligible(pods: PodTable, model: str, named: Sequence[str], lora: str) -> list[Pod]:
    """Return the pods that may take a request, of those named where any are.

    They serve the model, do not refuse requests (as a draining engine's /health does), and serve the
    adapter as far as they say which they do. A pod that is not known to be well serves only where there
    is no other: its stream may be cut, or its health not looked at yet. Raises NoPodError, which says
    what was missing.
    """
    found = pods.serving(model)
    if not found:
        raise NoPodError(f"no pod serves {model!r}")
    if named:
        wanted = set(named)
        found = [pod for pod in found if pod.id in wanted]
        if not found:
            raise NoPodError(f"none of the {len(wanted)} pods named serves {model!r}")
    willing = [pod for pod in found if not pod.status.refuses]
    if not willing:
        raise NoPodError(f"every pod of {model!r} that may be picked refuses requests")
    serving = that_serve(willing) or willing
    # An engine may load an adapter when it is first asked for it, so one that lists none will do.
    able = [pod for pod in serving if not lora or lora in pod.status.models]
    return able or serving
