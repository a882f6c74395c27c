"""llm-d's indexer service, beside the router's own."""

import grpc

from warmpath.proto.pb.indexer.v1 import indexer_pb2 as llmd
from warmpath.router.calls.llmd import PodScores
from warmpath.router.calls.service import RouterService

SERVICE = llmd.DESCRIPTOR.services_by_name["IndexerService"]


def handlers(router: RouterService, scores: PodScores) -> grpc.GenericRpcHandler:
    """Return the service's handlers. Calls wait, are refused, drained and counted with `router`'s."""
    method = SERVICE.methods_by_name["GetPodScores"]
    return grpc.method_handlers_generic_handler(
        SERVICE.full_name, {method.name: router.unary(method, scores.get_pod_scores)}
    )
