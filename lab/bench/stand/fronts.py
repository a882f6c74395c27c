"""Envoys beside the gateway that is measured: one without the router, and one that answers like pods."""

from warmpath.cli.gateway.bootstrap import Fields, GatewayDescription, bootstrap

ANSWER = '{"usage": {"prompt_tokens": 1, "completion_tokens": 1}}'
TYPES = "type.googleapis.com/envoy.extensions."
ASKING = tuple(f"envoy.filters.http.{name}" for name in ("ext_proc", "ext_authz", "lua"))
IN_TURN = {
    "name": "envoy.load_balancing_policies.round_robin",
    "typed_config": {"@type": f"{TYPES}load_balancing_policies.round_robin.v3.RoundRobin"},
}


def without_router(gateway: GatewayDescription) -> Fields:
    """Return the same gateway's bootstrap with round robin, and no router."""
    fields = bootstrap(gateway)
    resources = fields["static_resources"]
    pods, *_ = resources["clusters"]
    pods["load_balancing_policy"] = {"policies": [{"typed_extension_config": IN_TURN}]}
    resources["clusters"] = [pods]
    manager = resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    manager.pop("access_log", None)
    manager["http_filters"] = [one for one in manager["http_filters"] if one["name"] not in ASKING]
    return fields


def answering(gateway: GatewayDescription) -> Fields:
    """Return the bootstrap of an Envoy that answers at each pod's address, once a request is whole."""
    return {
        "admin": {"address": {"pipe": {"path": str(gateway.admin), "mode": 0o600}}},
        "static_resources": {
            "listeners": [
                {
                    "name": str(one),
                    "address": {"socket_address": {"address": one.host, "port_value": one.port}},
                    # Tests and benchmarks hold the ports.
                    "enable_reuse_port": False,
                    "filter_chains": [{"filters": [_manager(gateway)]}],
                }
                for one in gateway.pods
            ]
        },
    }


def _manager(gateway: GatewayDescription) -> Fields:
    route = {
        "match": {"prefix": "/"},
        "direct_response": {"status": 200, "body": {"inline_string": ANSWER}},
        "response_headers_to_add": [
            {
                "header": {"key": "content-type", "value": "application/json"},
                "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
            }
        ],
    }
    filters: tuple[tuple[str, str, Fields], ...] = (
        ("buffer", "buffer.v3.Buffer", {"max_request_bytes": gateway.body_bytes}),
        ("router", "router.v3.Router", {}),
    )
    return {
        "name": "envoy.filters.network.http_connection_manager",
        "typed_config": {
            "@type": f"{TYPES}filters.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": "pods",
            "route_config": {
                "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]
            },
            "http_filters": [
                {
                    "name": f"envoy.filters.http.{name}",
                    "typed_config": {"@type": f"{TYPES}filters.http.{kind}", **fields},
                }
                for name, kind, fields in filters
            ],
        },
    }
