"""The role that each call needs. A method that is not listed here is refused to everybody."""

from warmpath.router.config.schema import Right

ROUTER = "/warmpath.v1.Router/"

OPEN = ("/grpc.health.v1.Health/", "/healthz", "/readyz")
"""Beginnings of the methods and paths that are open to anybody: the router's health."""

ROLES: dict[str, Right] = {
    f"{ROUTER}Score": "score",
    f"{ROUTER}ScoreStream": "score",
    f"{ROUTER}Pick": "score",
    f"{ROUTER}Report": "score",
    f"{ROUTER}Explain": "score",
    "/indexer.v1.IndexerService/GetPodScores": "score",
    "/query": "score",
    "/overlap_scores": "score",
    f"{ROUTER}ListPods": "read",
    f"{ROUTER}Diagnose": "read",
    f"{ROUTER}ListDecisions": "read",
    "/envoy.service.ext_proc.v3.ExternalProcessor/Process": "score",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": "read",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": "read",
    "/metrics": "read",
    "/api/v1/Score": "score",
    "/api/v1/Explain": "score",
    "/api/v1/ListPods": "read",
    "/api/v1/ListDecisions": "read",
    "/api/v1/Diagnose": "read",
    "/api/v1/live": "read",
}
"""Roles by the full names of gRPC's methods, and by HTTP's paths."""


def is_open(asked: str) -> bool:
    """Return whether anybody may ask for a method or path."""
    return asked.startswith(OPEN)
