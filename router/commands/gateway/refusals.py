"""The responses of Envoy's own that get the form of the router's refusals."""

from router.commands.gateway.description import GatewayDescription
from router.commands.gateway.fields import Fields, extension

ROUTER_AWAY = "ROUTER_AWAY"
"""The reason of a 503 where Envoy cannot ask the router."""
TOO_LARGE = "TOO_LARGE"
"""The reason of a 413, whose request has a body longer than `--max-body-bytes`."""
NO_POD = "NO_POD"
"""The reason of a 503 where no pod can be reached, as the router has it where none may be picked."""


def refusals(gateway: GatewayDescription) -> list[Fields]:
    """Return the mappers of a gateway's local replies."""
    flags = {"response_flag_filter": {"flags": ["UH", "UF", "UC", "UR"]}}
    found = [
        _refusal(flags, NO_POD, "no pod can be reached"),
        _refusal(
            _where("response.code_details == 'request_payload_too_large'"),
            TOO_LARGE,
            f"the body is longer than {gateway.limits.body_bytes} bytes",
            kind="invalid_request_error",
        ),
    ]
    if gateway.failure_mode == "fail-close":
        away = _where("response.code_details.startsWith('ext_proc_error')")
        found.append(_refusal(away, ROUTER_AWAY, "the router cannot be asked for a pod"))
    return found


def _where(expression: str) -> Fields:
    """Return the filter of responses for which an expression of CEL is true."""
    return {
        "extension_filter": extension(
            "envoy.access_loggers.extension_filters.cel",
            "extensions.access_loggers.filters.cel.v3.ExpressionFilter",
            expression=expression,
        )
    }


def _refusal(
    which: Fields, reason: str, message: str, *, kind: str = "service_unavailable"
) -> Fields:
    """Return the mapper that gives a response of Envoy's own the form of the router's refusals."""
    error = {"message": message, "type": kind, "code": reason}
    return {
        "filter": which,
        "headers_to_add": [{"header": {"key": "x-warmpath-reason", "value": reason}}],
        "body_format_override": {"json_format": {"error": error}},
    }
