"""The configuration of Envoy: a `GatewayDescription` in, the bootstrap as JSON's values out.

`envoy.json` has what is the same in each. What Envoy reads again while it runs, the list of pods and the
certificates towards the router, is in files of its folder (its discovery services EDS and SDS). It waits
for a file to be moved over the one that it has read, so that it never reads half a file, and watches the
folders of PEM files likewise. Without a folder all is in the bootstrap, and is read once.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any, Literal

from warmpath.process.address import HostPort, is_host_port
from warmpath.process.tls import TlsPaths
from warmpath.router.config.schema import PickerHeadersTable
from warmpath.router.endpoint_picker.protocol import (
    ANSWERING,
    GATEWAY_ERROR,
    OWN_RESPONSES,
    SERVICE,
)

FailureMode = Literal["fail-close", "fail-open"]


class AddressError(ValueError):
    """A text is not a valid address."""


def address_of(text: str) -> HostPort:
    """Return the address in a text, host:port with IPv6 in brackets. Raises AddressError."""
    if not is_host_port(text) or text.startswith((":", "[]")):
        raise AddressError(f"{text!r} is not host:port")
    return HostPort.of(text)


def ip_address_of(text: str) -> HostPort:
    """Return an address that needs no look-up. Raises AddressError."""
    address = address_of(text)
    if not address.is_ip or not address.port:
        raise AddressError(f"{text} is not an IP address and a port, which Envoy needs")
    return address


@dataclass(frozen=True, slots=True)
class GatewayDescription:
    """The gateway: one Envoy, its router and its pods."""

    listen: HostPort
    """Where clients connect; port 0 takes a free one."""
    router: HostPort
    pods: Sequence[HostPort]
    """IP addresses, or, without a folder, at least one, or names that Envoy looks up each second."""
    failure_mode: FailureMode = "fail-close"
    """The fate of requests while the router cannot be asked: fail-close answers 503, fail-open sends
    them to the pods round robin."""
    router_tls: TlsPaths | None = None
    folder: Path | None = None
    """Envoy's own folder, with the socket of its administration interface and the files that it reads
    again when they are replaced. None: it has no such socket, and all is in the bootstrap."""
    logs_requests: bool = False
    """Whether Envoy writes a line for each request to its standard error."""
    body_bytes: int = 8 << 20
    """Longest body of a request; a longer one gets 413. By default as the router's limit on prompts."""

    @property
    def admin(self) -> Path | None:
        return None if self.folder is None else self.folder / "admin"


Fields = dict[str, Any]

TEMPLATE = Path(__file__).with_name("envoy.json")
TYPES = "type.googleapis.com/envoy."
ANSWERS = TEMPLATE.with_name("answers.lua")
HEADERS = PickerHeadersTable()
OF_SESSIONS = (*HEADERS.session, *HEADERS.parent_session, *HEADERS.session_final)
"""The headers that tell the router of sessions, with the names that are configured by default."""
FOR_ROUTER = (HEADERS.priority, *HEADERS.objective, *HEADERS.tenant, *HEADERS.rewrite)
"""Headers of a request that no engine gets, likewise."""
PODS, AUTHORITY, CERTIFICATE = "pods.json", "authority.json", "certificate.json"
ROUTER_AWAY = "ROUTER_AWAY"
"""The reason (x-warmpath-reason) of Envoy's answer when it cannot ask the router."""
MESSAGES = {
    "OVERLOADED": "too many requests are under way",
    "NO_POD": "no pod gave an answer",
    "TOO_LARGE": "the body is longer than {body_bytes} bytes",
    "SILENT": "nothing came for 300 s",
    ROUTER_AWAY: "the router cannot be asked for a pod",
    GATEWAY_ERROR: "%RESPONSE_CODE_DETAILS%",
}
OF_HEADERS = dict.fromkeys(
    ("http1.headers_too_large", "http1.too_many_headers"),
    "the request's headers are longer than 60 KiB or more than 100",
)
"""Envoy's causes of a refusal of a request's headers, with the message for its own limits."""


def bootstrap(gateway: GatewayDescription) -> Fields:
    """Return the configuration with which a gateway's Envoy starts, as JSON's values.

    With a `folder` it refers to the files that `write_all` writes there.
    """
    lines = TEMPLATE.read_text(encoding="utf-8").splitlines()
    template = Template("\n".join(line for line in lines if not line.lstrip().startswith("//")))
    may_pass = gateway.failure_mode == "fail-open"
    # Of a name like localhost, which has addresses of both families, only one may listen.
    fixed, of_name = '"type": "STATIC"', '"type": "STRICT_DNS", "dns_lookup_family": "ALL"'
    are_ips = all(one.is_ip for one in gateway.pods)
    text = template.substitute(
        type=f"{TYPES}type",
        types=f"{TYPES}extensions",
        listen=json.dumps(_socket(gateway.listen)),
        body_bytes=gateway.body_bytes,
        may_pass=json.dumps(may_pass),
        request_mode="BUFFERED" if may_pass else "FULL_DUPLEX_STREAMED",
        response_mode="STREAMED" if may_pass else "FULL_DUPLEX_STREAMED",
        asked=_each("exact", OF_SESSIONS + FOR_ROUTER),
        for_router=_each("remove", FOR_ROUTER),
        answers=json.dumps(ANSWERS.read_text(encoding="utf-8")),
        refusals=json.dumps(_refusals(gateway.body_bytes)),
        pods=json.dumps(_assignment("pods", gateway.pods)),
        pods_type=fixed if are_ips else f'{of_name}, "dns_refresh_rate": "1s"',
        router_type=fixed if gateway.router.is_ip else of_name,
        router=json.dumps(_assignment("router", [gateway.router])),
        # A router without a healthy pod is asked all the same if nobody else could serve the request:
        # it tells why. A name may stand for several routers, of which another may have pods.
        health=ANSWERING if gateway.router.is_ip and not may_pass else SERVICE,
    )
    fields: Fields = json.loads(text)
    resources = fields["static_resources"]
    pods, *routers = resources["clusters"]
    if gateway.router_tls is not None:
        kind = f"{TYPES}extensions.transport_sockets.tls.v3.UpstreamTlsContext"
        for router, protocol in zip(routers, ("h2", "http/1.1"), strict=True):
            tls = _tls(gateway.router, gateway.router_tls, gateway.folder, protocol)
            router["transport_socket"] = {
                "name": "envoy.transport_sockets.tls",
                "typed_config": {"@type": kind, **tls},
            }
    manager = resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    if not gateway.logs_requests:
        del manager["access_log"][-1]
    if gateway.folder is not None:
        del pods["load_assignment"]
        source = {"eds_config": _source(gateway.folder / PODS)}
        pods |= {"type": "EDS", "eds_cluster_config": source}
        fields["admin"] = {"address": {"pipe": {"path": str(gateway.admin), "mode": 0o600}}}
    return fields


def write_all(gateway: GatewayDescription, folder: Path) -> None:
    """Write, into Envoy's folder, all files to which the gateway's bootstrap refers."""
    write_pods(gateway.pods, folder)
    tls, kind = gateway.router_tls, "extensions.transport_sockets.tls.v3.Secret"
    if tls is not None:
        secret = {"name": AUTHORITY, "validation_context": _authority(tls)}
        _write(folder / AUTHORITY, kind, secret)
        if tls.cert is not None:
            secret = {"name": CERTIFICATE, "tls_certificate": _own(tls)}
            _write(folder / CERTIFICATE, kind, secret)


def write_pods(pods: Sequence[HostPort], folder: Path) -> None:
    """Replace the list of pods in Envoy's folder, which Envoy then reads again."""
    _write(folder / PODS, "config.endpoint.v3.ClusterLoadAssignment", _assignment("pods", pods))


def _write(path: Path, kind: str, content: Fields) -> None:
    new = path.with_suffix(".new")
    resource = {"@type": TYPES + kind, **content}
    new.write_text(json.dumps({"resources": [resource]}), encoding="utf-8")
    new.replace(path)


def _socket(address: HostPort) -> Fields:
    return {"socket_address": {"address": address.host, "port_value": address.port}}


def _each(does: str, names: Iterable[str]) -> str:
    """Return the items of a list that does the same with each header."""
    return json.dumps([{does: one} for one in dict.fromkeys(names)])[1:-1]


def _assignment(cluster: str, addresses: Sequence[HostPort]) -> Fields:
    endpoints = [{"endpoint": {"address": _socket(one)}} for one in addresses]
    return {"cluster_name": cluster, "endpoints": [{"lb_endpoints": endpoints}]}


def _refusals(body_bytes: int) -> list[Fields]:
    """Return mappers that give Envoy's own responses the form of the router's; the first fit counts."""
    known = {**OWN_RESPONSES, "ext_proc_error": ROUTER_AWAY}
    causes = {beginning: (reason, MESSAGES[reason]) for beginning, reason in known.items()}
    causes |= {beginning: ("TOO_LARGE", message) for beginning, message in OF_HEADERS.items()}
    reasons = {
        f"response.code_details.startsWith('{beginning}')": told
        for beginning, told in causes.items()
    }
    # A refusal of the router has its reason already.
    other = "!('x-warmpath-reason' in response.headers)"
    reasons[other] = GATEWAY_ERROR, MESSAGES[GATEWAY_ERROR]
    kind = f"{TYPES}extensions.access_loggers.filters.cel.v3.ExpressionFilter"

    def where(expression: str) -> Fields:
        typed = {"@type": kind, "expression": expression}
        name = "envoy.access_loggers.extension_filters.cel"
        return {"extension_filter": {"name": name, "typed_config": typed}}

    # ext_authz takes 503 for a failure, so the router refuses with 403.
    denied = "response.code_details == 'ext_authz_denied' && response.code == 403"
    found: list[Fields] = [{"filter": where(denied), "status_code": 503}]
    for expression, (reason, message) in reasons.items():
        error = {
            "message": message.format(body_bytes=body_bytes),
            "type": "invalid_request_error" if reason == "TOO_LARGE" else "service_unavailable",
            "code": reason,
        }
        found.append(
            {
                "filter": where(expression),
                "headers_to_add": [{"header": {"key": "x-warmpath-reason", "value": reason}}],
                "body_format_override": {"json_format": {"error": error}},
            }
        )
    return found


def _tls(router: HostPort, tls: TlsPaths, folder: Path | None, protocol: str) -> Fields:
    """Return the TLS of connections to a router, which has to have a certificate for its address."""
    name = {"san_type": "IP_ADDRESS" if router.is_ip else "DNS", "matcher": {"exact": router.host}}
    checks = {"match_typed_subject_alt_names": [name]}
    common: Fields = {"alpn_protocols": [protocol]}
    if folder is None:
        common["validation_context"] = _authority(tls) | checks
        if tls.cert is not None:
            common["tls_certificates"] = [_own(tls)]
    else:
        common["combined_validation_context"] = {
            "default_validation_context": checks,
            "validation_context_sds_secret_config": _secret(folder, AUTHORITY),
        }
        if tls.cert is not None:
            common["tls_certificate_sds_secret_configs"] = [_secret(folder, CERTIFICATE)]
    return {"common_tls_context": common} | ({} if router.is_ip else {"sni": router.host})


def _authority(tls: TlsPaths) -> Fields:
    return {"trusted_ca": {"filename": str(tls.ca)}}


def _own(tls: TlsPaths) -> Fields:
    return {
        "certificate_chain": {"filename": str(tls.cert)},
        "private_key": {"filename": str(tls.key)},
    }


def _secret(folder: Path, name: str) -> Fields:
    return {"name": name, "sds_config": _source(folder / name)}


def _source(path: Path) -> Fields:
    return {"path_config_source": {"path": str(path)}}
