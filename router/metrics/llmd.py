"""Metrics of the router under the names of llm-d's picker, for dashboards and autoscalers made for it.

docs/reference/metrics.md has the table. Names: llm-d-router's pkg/epp/metrics, as of ebab687 (August
2026), and those that it calls deprecated, which most dashboards use.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client.core import Metric

POOL = "(pool)"
"""In place of a label of ours: the name of the pool."""


class Renamed(NamedTuple):
    """A metric of llm-d's, made of one of ours: samples of equal labels are added up."""

    names: tuple[str, ...]
    """llm-d's names, without the suffix of a counter."""
    ours: str
    labels: Mapping[str, str]
    """llm-d's labels, and ours in their place."""
    is_mean: bool = False
    """Whether the samples' mean is told in place of their sum."""
    where: Mapping[str, Collection[str]] = {}
    """Labels of ours, and their values in the samples that count; others do not matter."""


IN_POOL, OF_MODEL = {"name": POOL}, {"model_name": "model", "target_model_name": "model"}
IN_QUEUE = {"inference_pool": POOL, "priority": "class"}


def _pool(name: str, was: str = "") -> tuple[str, ...]:
    return f"llm_d_epp_{name}", f"inference_pool_{was or name}"


def _extension(name: str) -> tuple[str, ...]:
    return f"llm_d_epp_{name}", f"inference_extension_{name}"


RENAMED = (
    Renamed(_pool("average_queue_size"), "rank_engine_waiting", IN_POOL, is_mean=True),
    Renamed(_pool("average_running_requests"), "rank_engine_running", IN_POOL, is_mean=True),
    Renamed(_pool("average_kv_cache_utilization"), "rank_engine_kv_usage", IN_POOL, is_mean=True),
    Renamed(_pool("ready_endpoints", "ready_pods"), "pod_ready", IN_POOL),
    Renamed(
        ("llm_d_epp_per_endpoint_queue_size",),
        "rank_engine_waiting",
        IN_POOL | {"model_server_endpoint": "pod"},
    ),
    Renamed(
        ("inference_pool_per_pod_queue_size",),
        "rank_engine_waiting",
        IN_POOL | {"model_server_pod": "pod"},
    ),
    Renamed(
        ("llm_d_epp_request", "inference_objective_request"),
        "pick_requests",
        OF_MODEL | {"pod": "pod"},
    ),
    Renamed(
        ("llm_d_epp_request_running", "inference_objective_running_requests"),
        "rank_running",
        OF_MODEL,
    ),
    Renamed(
        ("llm_d_epp_request_processing_duration_seconds",),
        "request_seconds",
        {},
        where={"method": ("Process", "/pick")},
    ),
    Renamed(_extension("flow_control_queue_size"), "queue_waiting", IN_QUEUE),
    Renamed(_extension("flow_control_queue_bytes"), "queue_bytes", {"inference_pool": POOL}),
    Renamed(
        _extension("flow_control_request_queue_duration_seconds"),
        "queue_wait_seconds",
        IN_QUEUE | {"outcome": "outcome"},
    ),
    Renamed(_extension("prefix_indexer_size"), "index_entries", {}),
)


def with_llmd_names(families: Iterable[Metric | None], pool: str) -> Iterator[Metric | None]:
    """Yield the router's metrics, then llm-d's for the pool of this name; None is passed on."""
    wanted = {f"warmpath_{one.ours}" for one in RENAMED}
    found: dict[str, Metric] = {}
    for family in families:
        if family is not None and family.name in wanted:
            found[family.name] = family
        yield family
    pods = found["warmpath_pod_ready"].samples
    models = {one.labels["pod"]: one.labels["model"] for one in pods}
    for one in RENAMED:
        if (ours := found.get(f"warmpath_{one.ours}")) is not None:
            yield from _renamed(one, ours, pool, models)


def _renamed(one: Renamed, ours: Metric, pool: str, models: Mapping[str, str]) -> Iterator[Metric]:
    found: defaultdict[tuple[str, tuple[tuple[str, str], ...]], list[float]] = defaultdict(list)
    if one.labels == IN_POOL and not one.is_mean:
        found["", tuple({"name": pool}.items())] = []  # Without pods the sum is 0.
    for sample in ours.samples:
        known = {POOL: pool, "model": models.get(sample.labels.get("pod", ""), ""), **sample.labels}
        if any(known[label] not in counted for label, counted in one.where.items()):
            continue
        labels = {label: known[at] for label, at in one.labels.items()}
        if "le" in known:
            labels["le"] = known["le"]
        found[sample.name.removeprefix(ours.name), tuple(labels.items())].append(sample.value)
    for name in one.names:
        family = Metric(name, f"{ours.name} under the name of llm-d.", ours.type)
        for (suffix, labels_of), several in found.items():
            count = len(several) if one.is_mean else 1
            family.add_sample(name + suffix, dict(labels_of), sum(several) / count)
        yield family
