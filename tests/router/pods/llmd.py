"""Objects of llm-d as an API server shows them, with fields that the router does not read."""

from typing import Any

NEW, OLD = "llm-d.ai", "inference.networking.x-k8s.io"


def _object(kind: str, name: str, created: str, pool: str, **spec: Any) -> dict[str, Any]:
    reference = {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": pool}
    return {
        "apiVersion": "llm-d.ai/v1alpha2", "kind": kind,
        "metadata": {
            "name": name, "namespace": "ns", "generation": 1, "uid": f"uid of {name}",
            "creationTimestamp": f"2026-08-22T06:{created}:22Z",
        },
        "spec": {"poolRef": reference, **spec},
        "status": {"conditions": [{"type": "Accepted", "status": "Unknown", "reason": "Pending"}]},
    }  # fmt: skip


def objective(name: str, pool: str = "pool", **spec: Any) -> dict[str, Any]:
    return _object("InferenceObjective", name, "00", pool, **spec)


def rewrite(
    name: str, *rules: dict[str, Any], created: str = "00", pool: str = "pool"
) -> dict[str, Any]:
    return _object("InferenceModelRewrite", name, created, pool, rules=list(rules))


def rule(*models: str, **weights: int | None) -> dict[str, Any]:
    """Return a rule for models, or for all; of `weights` the names are the targets, None is no weight."""
    targets = [
        {"modelRewrite": name} | ({} if weight is None else {"weight": weight})
        for name, weight in weights.items()
    ]
    found: dict[str, Any] = {"targets": targets}
    if models:
        found["matches"] = [{"model": {"type": "Exact", "value": one}} for one in models]
    return found
