"""The names and numbers that version 1 of the endpoint-picker protocol fixes.

Sources: the Gateway API Inference Extension, docs/proposals/004-endpoint-picker-protocol (v1.0.0), and
Envoy's `envoy/service/ext_proc/v3/external_processor.proto` and
`envoy/extensions/filters/http/ext_proc/v3/processing_mode.proto`.
"""

from dataclasses import dataclass
from enum import IntEnum
from itertools import filterfalse

from warmpath.router.config.schema import PickerHeadersTable

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
HEALTH_NAMES = (SERVICE, "inference-extension", "readiness")
"""Names by which gateways ask for this service's health: the protocol's two, and a third that early
deployments of the extension's own picker use."""
ANSWERING = "answering"
"""The name by which a gateway with one router asks whether that answers, if only that no pod is left.
Without another router to ask, the reason is worth more than a pick that nobody can make."""
LIVENESS = "liveness"
"""The name by which gateways ask whether the process is alive, even if it cannot serve yet."""

DESTINATION = "x-gateway-destination-endpoint"
"""Header, and key of the metadata in NAMESPACE: the picked endpoint and its fall-backs."""
RANK = "x-data-parallel-rank"
"""Header of a request to a pod with several ranks: vLLM's number of the picked rank."""
SERVED = "x-gateway-destination-endpoint-served"
"""Key of the metadata in NAMESPACE: the endpoint that served the request."""
THROUGH = "x-warmpath-through"
"""Header of a plain call's answer, for Envoy's filters alone: what is left to do for the request."""
BOOKING = "x-warmpath-booking"
"""Header of a plain call's answer, for Envoy's metadata alone: the booking id."""
TOLD = "x-warmpath-told"
"""Likewise, for the response's headers: ADDRESS POD CACHED SAVED of each endpoint, with commas between
them. POD is percent-encoded; CACHED and SAVED are tokens and seconds, and - where they are not known."""
ROUTER = "x-warmpath-router"
"""Likewise: the address at which the gateway has reached the router that made the booking."""
PICK, WATCH, EXCHANGE = "pick", "watch", "exchange"
"""Values of THROUGH: nothing more; the whole answer is read; another filter asks in an exchange, as one
call does not do."""
NAMESPACE = "envoy.lb"
SUBSET = "x-gateway-destination-endpoint-subset"
"""Key of the metadata in SUBSET_NAMESPACE: the only endpoints that may be picked."""
SUBSET_NAMESPACE = "envoy.lb.subset_hint"
UPSTREAM_ATTRIBUTE = "upstream.address"
"""Envoy's attribute with the endpoint that served a request, for exchanges without SERVED."""
DETAILS_ATTRIBUTE = "response.code_details"
"""Envoy's attribute that tells why a response is Envoy's own."""
OF_AN_ENDPOINT = "via_upstream"
"""The value of DETAILS_ATTRIBUTE where a response is not Envoy's own."""
OWN_RESPONSES = {
    "upstream_reset_before_response_started{overflow": "OVERLOADED",
    "no_healthy_upstream": "NO_POD",
    "upstream_reset_before_response_started": "NO_POD",
    "request_payload_too_large": "TOO_LARGE",
    "stream_idle_timeout": "SILENT",
}
"""Beginnings of DETAILS_ATTRIBUTE's other values, and their reasons; the first that fits counts."""
TIMED_OUT = ("408", "504")
"""HTTP statuses by which a proxy on the way says that the engine has not answered."""
GATEWAY_ERROR = "GATEWAY_ERROR"
"""The reason of Envoy's own responses that OWN_RESPONSES lacks."""

SIDECARS = (
    *("x-prefiller-host-port", "x-encoder-hosts-ports", "x-data-parallel-host-port"),
    "x-kv-cache-source-host-port",
)
"""Headers by which a picker tells llm-d's sidecars to call other pods (its pkg/common/routing). A client
that could set one would choose whom a pod calls."""

PICKERS_OWN = (DESTINATION, SERVED, SUBSET, *SIDECARS, THROUGH)
"""Headers that no client may send on to an engine."""

PIECE_BYTES = 62_000
"""Longest piece of a body that is sent back: Envoy recommends less than 64 KiB, and some gateways refuse
longer ones."""


class BodyMode(IntEnum):
    """How a gateway sends a body, with Envoy's numbers. Envoy's mode for gRPC is not supported."""

    NONE = 0
    """The gateway does not send the body."""
    STREAMED = 1
    """The gateway sends pieces, and holds each until its reply."""
    BUFFERED = 2
    """The gateway sends the body in one piece."""
    BUFFERED_PARTIAL = 3
    """The gateway sends one piece, up to its limit; the rest passes through."""
    FULL_DUPLEX_STREAMED = 4
    """The gateway sends pieces, and sends on those that come back in replies."""

    @property
    def sends_back(self) -> bool:
        """Whether the picker has to send the body back."""
        return self is BodyMode.FULL_DUPLEX_STREAMED


@dataclass(frozen=True, slots=True)
class HeaderNames:
    """The configured names of headers, and those of the protocol."""

    ours: PickerHeadersTable
    in_request: tuple[str, ...]
    """Headers that a client may not send to an engine; DESTINATION, which a pick replaces, is first."""
    in_response: tuple[str, ...]
    """Headers that an engine may not send to a client: the picker's own headers of a response."""


def without(names: tuple[str, ...], put: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    """Return the names of headers to remove, except those that `put` replaces."""
    return tuple(filterfalse(dict(put).__contains__, names))


def names_of(ours: PickerHeadersTable) -> HeaderNames:
    """Return the names of headers for a configuration."""
    in_response = tuple(
        name
        for name in (ours.pod, ours.cached_tokens, ours.saved_seconds, ours.reason, ours.dropped)
        if name
    )
    asked = (*ours.rewrite, RANK, ours.priority, *ours.objective, *ours.tenant, ours.prefill)
    others = (*PICKERS_OWN, *in_response, *asked)
    in_request = tuple(dict.fromkeys(name for name in others if name))
    assert in_request[0] == DESTINATION
    return HeaderNames(ours, in_request, in_response)
