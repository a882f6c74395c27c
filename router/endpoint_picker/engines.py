"""What pods serve: the kind of engine behind a model, since engines read some APIs in their own ways."""

from warmpath.router.pods.table import PodTable
from warmpath.router.prompt.models import ModelTable, UnknownModelError


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


def only_model(pods: PodTable) -> str:
    """Return the model that all pods serve; empty if they serve several."""
    models = {pod.model for pod in pods}
    return models.pop() if len(models) == 1 else ""
