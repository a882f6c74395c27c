"""The configuration of Envoy: a `GatewayDescription` in, the bootstrap as JSON's values out. No I/O.

    client ─► listener ─► remove the picker's headers ─► limit the body ─► ask the router ─► pods
                                                                            │     a pod, and fall-backs
                                                                            ▼
                                                            envoy.service.ext_proc.v3.ExternalProcessor

Names of headers and metadata: the Gateway API Inference Extension's endpoint-picker protocol
(docs/proposals/004-endpoint-picker-protocol, v1.0.0). Fields: Envoy's API, version 3, as of Envoy 1.40.
"""

from collections.abc import Sequence
from typing import Any

from warmpath.cli.gateway.description import (
    Fields,
    GatewayDescription,
    GatewayLimits,
    HostPort,
    extension,
    socket_address,
)
from warmpath.cli.gateway.refusals import refusals
from warmpath.cli.gateway.reread import assignment, pods_source, tls_context

NAMESPACE = "envoy.lb"
DESTINATION = "x-gateway-destination-endpoint"
SERVED = "x-gateway-destination-endpoint-served"
SUBSET = "x-gateway-destination-endpoint-subset"
SIDECARS = (
    *("x-prefiller-host-port", "x-encoder-hosts-ports", "x-data-parallel-host-port"),
    "x-kv-cache-source-host-port",
)
OF_PICKERS = (DESTINATION, SERVED, SUBSET, *SIDECARS, "x-data-parallel-rank")
"""Headers of requests that only the picker sets."""
OF_CLIENTS = ("x-warmpath-session", "x-warmpath-priority")
"""Headers of requests that are for the router alone."""
OF_RESPONSES = (
    *("x-warmpath-pod", "x-warmpath-cached-tokens", "x-warmpath-saved-seconds"),
    "x-warmpath-reason",
)
"""Headers of responses that only the router and Envoy set."""
PROTOCOL = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
ANSWERING = "answering"
"""The router's name for its health, whatever that of its pods."""

ROUTER_STREAMS = 100
"""Requests under way on one connection to a router, of which `server.http2.max-streams` allows 256.
Envoy reads that limit only once a connection is made; until then it would send all over one."""
ASK_AGAIN: Fields = {"retry_on": "connect-failure,refused-stream,reset", "num_retries": 5}
"""A question that the router has not begun to answer may be asked again: of a router with a lower limit,
or that ends, or of another one."""
WINDOW_BYTES = 64 << 10
"""Of a stream of HTTP/2, as Envoy's page on its use as an edge proxy advises."""
CONNECTION_WINDOW_BYTES = 1 << 20
TCP, USER_TIMEOUT = 6, 18
"""Linux' numbers for TCP_USER_TIMEOUT (tcp(7)), in milliseconds."""
FORMAT = (
    "%START_TIME% %REQ(:METHOD)% %PATH(NQ)% %RESPONSE_CODE% %RESPONSE_FLAGS% %UPSTREAM_HOST% "
    "%DURATION%ms pod=%RESP(x-warmpath-pod)% cached=%RESP(x-warmpath-cached-tokens)% "
    "reason=%RESP(x-warmpath-reason)%\n"
)
"""The line of a request in the access log; it has no header of the client and no part of a body."""


def bootstrap(gateway: GatewayDescription) -> Fields:
    """Return the bootstrap of a gateway's Envoy."""
    fields: Fields = {
        # Envoy reads no resource from a file without a name of its own.
        "node": {"id": "warmpath", "cluster": "warmpath"},
        "static_resources": {
            "listeners": [_listener(gateway)],
            "clusters": [_pods(gateway), _router(gateway)],
        },
        "overload_manager": {"resource_monitors": [_connections(gateway)]},
    }
    if gateway.admin is not None:
        fields["admin"] = {"address": {"pipe": {"path": str(gateway.admin), "mode": 0o600}}}
    return fields


def _connections(gateway: GatewayDescription) -> Fields:
    return extension(
        "envoy.resource_monitors.global_downstream_max_connections",
        "extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
        max_active_downstream_connections=gateway.limits.connections,
    )


def _listener(gateway: GatewayDescription) -> Fields:
    manager = extension(
        "envoy.filters.network.http_connection_manager",
        "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        **_manager(gateway),
    )
    return {
        "name": "clients",
        "address": socket_address(gateway.listen),
        # Otherwise a second Envoy on the same port would start, and take a share of the clients.
        "enable_reuse_port": False,
        "filter_chains": [{"filters": [manager]}],
    }


def _manager(gateway: GatewayDescription) -> Fields:
    limits = gateway.limits
    fields: Fields = {
        "stat_prefix": "clients",
        # A client's own X-Envoy headers, with which it could set time-outs and retries, do not count.
        "use_remote_address": True,
        "internal_address_config": {},
        "request_headers_timeout": _seconds(limits.headers_seconds),
        "stream_idle_timeout": _seconds(limits.silence_seconds),
        "common_http_protocol_options": {"idle_timeout": _seconds(limits.silence_seconds)},
        "http2_protocol_options": {
            "max_concurrent_streams": limits.streams,
            "initial_stream_window_size": WINDOW_BYTES,
            "initial_connection_window_size": CONNECTION_WINDOW_BYTES,
        },
        "route_config": {
            "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [_route(gateway)]}]
        },
        "http_filters": [
            _removing(OF_PICKERS),
            extension(
                "envoy.filters.http.buffer",
                "extensions.filters.http.buffer.v3.Buffer",
                max_request_bytes=limits.body_bytes,
            ),
            _ask_router(gateway),
            extension(
                "envoy.filters.http.router",
                "extensions.filters.http.router.v3.Router",
                suppress_envoy_headers=True,
            ),
        ],
    }
    fields["local_reply_config"] = {"mappers": refusals(gateway)}
    if gateway.logs_requests:
        fields["access_log"] = [
            extension(
                "envoy.access_loggers.stderr",
                "extensions.access_loggers.stream.v3.StderrAccessLog",
                log_format={"text_format_source": {"inline_string": FORMAT}},
            )
        ]
    return fields


def _removing(of_requests: Sequence[str], of_responses: Sequence[str] = ()) -> Fields:
    return extension(
        "envoy.filters.http.header_mutation",
        "extensions.filters.http.header_mutation.v3.HeaderMutation",
        mutations={
            "request_mutations": [{"remove": one} for one in of_requests],
            "response_mutations": [{"remove": one} for one in of_responses],
        },
    )


def _ask_router(gateway: GatewayDescription) -> Fields:
    may_pass = gateway.failure_mode == "fail-open"
    # Envoy can go on without the router only if it has kept all bytes that it sent there. In full
    # duplex it keeps none; buffered and streamed it keeps each piece until the reply.
    modes = ("BUFFERED", "STREAMED") if may_pass else ("FULL_DUPLEX_STREAMED",) * 2
    return extension(
        "envoy.filters.http.ext_proc",
        "extensions.filters.http.ext_proc.v3.ExternalProcessor",
        grpc_service={"envoy_grpc": {"cluster_name": "router"}, "retry_policy": ASK_AGAIN},
        failure_mode_allow=may_pass,
        status_on_error={"code": "ServiceUnavailable"},
        message_timeout=_seconds(gateway.limits.pick_seconds),
        processing_mode={
            "request_header_mode": "SEND",
            "request_body_mode": modes[0],
            "request_trailer_mode": "SEND",
            "response_header_mode": "SEND",
            "response_body_mode": modes[1],
            "response_trailer_mode": "SEND",
        },
        # Why a response is Envoy's own.
        response_attributes=["response.code_details"],
        metadata_options={
            "forwarding_namespaces": {"untyped": [NAMESPACE]},
            "receiving_namespaces": {"untyped": [NAMESPACE]},
        },
    )


def _route(gateway: GatewayDescription) -> Fields:
    limits = gateway.limits
    return {
        "match": {"prefix": "/"},
        "route": {
            "cluster": "pods",
            # An answer may be streamed for hours; `stream_idle_timeout` ends what stands still.
            "timeout": "0s",
            "retry_policy": {
                # The pod refused the request, or went away before its answer began.
                "retry_on": "connect-failure,refused-stream,reset,retriable-status-codes",
                "retriable_status_codes": [503],
                "num_retries": limits.retries,
            },
        },
        "request_body_buffer_limit": limits.body_bytes,
    }


def _pods(gateway: GatewayDescription) -> Fields:
    in_turn = extension(
        "envoy.load_balancing_policies.round_robin",
        "extensions.load_balancing_policies.round_robin.v3.RoundRobin",
    )
    override = extension(
        "envoy.load_balancing_policies.override_host",
        "extensions.load_balancing_policies.override_host.v3.OverrideHost",
        override_host_sources=[{"metadata": _lb(DESTINATION)}],
        selected_host_key=_lb(SERVED),
        fallback_policy=_policy(in_turn),
    )
    # An upstream filter sees each response of a pod, and none of Envoy's own.
    codec = extension(
        "envoy.filters.http.upstream_codec",
        "extensions.filters.http.upstream_codec.v3.UpstreamCodec",
    )
    filters = [_removing(OF_CLIENTS, OF_RESPONSES), codec]
    cluster = {
        **_cluster("pods", gateway.pods, gateway.limits),
        **_cut_off(gateway.limits.cut_off_seconds),
        **_protocol({"http_protocol_options": {}}, http_filters=filters),
    }
    if gateway.folder is not None:
        del cluster["load_assignment"]
        cluster |= {"type": "EDS", "eds_cluster_config": pods_source(gateway.folder)}
    return {**cluster, "load_balancing_policy": _policy(override)}


def _policy(policy: Fields) -> Fields:
    return {"policies": [{"typed_extension_config": policy}]}


def _protocol(config: Fields, **fields: Any) -> Fields:
    options = {"@type": f"type.googleapis.com/{PROTOCOL}", "explicit_http_config": config, **fields}
    return {"typed_extension_protocol_options": {PROTOCOL: options}}


def _cut_off(seconds: int) -> Fields:
    """Return the options of connections that end where the other side's machine answers no more.

    An engine may take minutes for an answer; its machine acknowledges bytes and probes all the same.
    """
    user_timeout = {"level": TCP, "name": USER_TIMEOUT, "int_value": seconds * 1000}
    return {
        "upstream_connection_options": {
            "tcp_keepalive": {
                "keepalive_time": seconds,
                "keepalive_interval": 1,
                "keepalive_probes": seconds,
            }
        },
        "upstream_bind_config": {"socket_options": [{**user_timeout, "state": "STATE_PREBIND"}]},
    }


def _lb(key: str) -> Fields:
    return {"key": NAMESPACE, "path": [{"key": key}]}


def _router(gateway: GatewayDescription) -> Fields:
    check = _seconds(gateway.limits.check_seconds)
    http2 = {
        "max_concurrent_streams": ROUTER_STREAMS,
        # Health checks keep new requests from a router that hangs; only this frees those that
        # wait for it already, for which full duplex has no time-out.
        "connection_keepalive": {
            "interval": _seconds(gateway.limits.ping_seconds),
            "timeout": _seconds(gateway.limits.pick_seconds),
        },
    }
    fields = {
        **_cluster("router", [gateway.router], gateway.limits),
        **_protocol({"http2_protocol_options": http2}),
        "health_checks": [
            {
                "timeout": check,
                "interval": check,
                "no_traffic_interval": check,
                "unhealthy_threshold": 2,
                "healthy_threshold": 1,
                "grpc_health_check": {"service_name": _health_of(gateway)},
            }
        ],
        # An unhealthy router is not asked, even if it is the only one.
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
    }
    if gateway.router_tls is not None:
        fields["transport_socket"] = extension(
            "envoy.transport_sockets.tls",
            "extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            **tls_context(gateway.router, gateway.router_tls, gateway.folder),
        )
    return fields


def _health_of(gateway: GatewayDescription) -> str:
    """Return the name by which to ask for the router's health.

    A router without a healthy pod is asked all the same if nobody else could serve the request:
    it tells why. A name may stand for several routers, of which another may have pods.
    """
    is_last = gateway.failure_mode == "fail-close" and gateway.router.is_ip
    return ANSWERING if is_last else SERVICE


def _cluster(name: str, addresses: Sequence[HostPort], limits: GatewayLimits) -> Fields:
    return {
        "name": name,
        **_resolution(addresses),
        "connect_timeout": _seconds(limits.connect_seconds),
        "load_assignment": assignment(name, addresses),
        "circuit_breakers": {
            "thresholds": [
                {
                    "max_connections": limits.requests,
                    "max_pending_requests": limits.requests,
                    "max_requests": limits.requests,
                    "max_retries": limits.requests,
                }
            ]
        },
    }


def _resolution(addresses: Sequence[HostPort]) -> Fields:
    if all(one.is_ip for one in addresses):
        return {"type": "STATIC"}
    # Of a name like localhost, which has addresses of both families, only one may listen.
    return {"type": "STRICT_DNS", "dns_lookup_family": "ALL"}


def _seconds(value: float) -> str:
    return f"{value:g}s"
