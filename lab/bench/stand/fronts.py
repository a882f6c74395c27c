"""The gateway's Envoy without the router, to compare with."""

from warmpath.cli.gateway.bootstrap import Fields, GatewayDescription, bootstrap

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
