"""The responses of Envoy's own, which get the form of the router's refusals."""

from warmpath.cli.gateway.description import Fields, GatewayDescription, extension
from warmpath.router.endpoint_picker.protocol import GATEWAY_ERROR, OWN_RESPONSES

ROUTER_AWAY = "ROUTER_AWAY"
"""The reason where Envoy cannot ask the router."""
OF_REASONS = {
    "OVERLOADED": "too many requests are under way",
    "NO_POD": "no pod gave an answer",
    "TOO_LARGE": "the body is longer than {limits.body_bytes} bytes",
    "SILENT": "nothing came for {limits.silence_seconds:g} s",
}


def refusals(gateway: GatewayDescription) -> list[Fields]:
    """Return the mappers of a gateway's local replies; the first that fits counts."""
    found = [
        _refusal(
            f"response.code_details.startsWith('{beginning}')",
            reason,
            OF_REASONS[reason].format(limits=gateway.limits),
        )
        for beginning, reason in OWN_RESPONSES.items()
    ]
    away = "response.code_details.startsWith('ext_proc_error')"
    found.append(_refusal(away, ROUTER_AWAY, "the router cannot be asked for a pod"))
    # A refusal of the router has its reason already.
    others = "!('x-warmpath-reason' in response.headers)"
    found.append(_refusal(others, GATEWAY_ERROR, "%RESPONSE_CODE_DETAILS%"))
    return found


def _refusal(expression: str, reason: str, message: str) -> Fields:
    kind = "invalid_request_error" if reason == "TOO_LARGE" else "service_unavailable"
    which = extension(
        "envoy.access_loggers.extension_filters.cel",
        "extensions.access_loggers.filters.cel.v3.ExpressionFilter",
        expression=expression,
    )
    return {
        "filter": {"extension_filter": which},
        "headers_to_add": [{"header": {"key": "x-warmpath-reason", "value": reason}}],
        "body_format_override": {
            "json_format": {"error": {"message": message, "type": kind, "code": reason}}
        },
    }
