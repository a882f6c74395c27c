"""What Envoy reads again while it runs: the list of pods, and the certificates towards the router.

Envoy's discovery services by file (EDS and SDS over `path_config_source`): Envoy waits for a file to be
moved over the one that it has read, so that it never reads half a file. It watches the folders of PEM
files in the same way. Without a folder of its own all is in the bootstrap, and is read once.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from warmpath.cli.gateway.description import (
    TYPES,
    Fields,
    GatewayDescription,
    HostPort,
    socket_address,
)
from warmpath.process.tls import TlsPaths

PODS, AUTHORITY, CERTIFICATE = "pods.json", "authority.json", "certificate.json"


def write_all(gateway: GatewayDescription, folder: Path) -> None:
    """Write all files to which the gateway's bootstrap refers."""
    write_pods(gateway.pods, folder)
    tls = gateway.router_tls
    if tls is not None:
        _write(folder / AUTHORITY, _secret(AUTHORITY, {"validation_context": _authority(tls)}))
        if tls.cert is not None:
            _write(folder / CERTIFICATE, _secret(CERTIFICATE, {"tls_certificate": _own(tls)}))


def write_pods(pods: Sequence[HostPort], folder: Path) -> None:
    """Replace the list of pods."""
    kind = "config.endpoint.v3.ClusterLoadAssignment"
    _write(folder / PODS, {"@type": TYPES + kind, **assignment("pods", pods)})


def assignment(cluster: str, addresses: Sequence[HostPort]) -> Fields:
    """Return a cluster's endpoints."""
    endpoints = [{"endpoint": {"address": socket_address(one)}} for one in addresses]
    return {"cluster_name": cluster, "endpoints": [{"lb_endpoints": endpoints}]}


def pods_source(folder: Path) -> Fields:
    """Return where Envoy finds the list of pods."""
    return {"eds_config": _source(folder / PODS)}


def tls_context(router: HostPort, tls: TlsPaths, folder: Path | None) -> Fields:
    """Return the TLS of connections to a router, which has to have a certificate for its address."""
    kind = "IP_ADDRESS" if router.is_ip else "DNS"
    name = {"san_type": kind, "matcher": {"exact": router.host}}
    checks: Fields = {"match_typed_subject_alt_names": [name]}
    common: Fields = {"alpn_protocols": ["h2"]}
    if folder is None:
        common["validation_context"] = _authority(tls) | checks
        if tls.cert is not None:
            common["tls_certificates"] = [_own(tls)]
    else:
        common["combined_validation_context"] = {
            "default_validation_context": checks,
            "validation_context_sds_secret_config": _secret_source(folder, AUTHORITY),
        }
        if tls.cert is not None:
            sources = [_secret_source(folder, CERTIFICATE)]
            common["tls_certificate_sds_secret_configs"] = sources
    return {"common_tls_context": common} | ({} if router.is_ip else {"sni": router.host})


def _authority(tls: TlsPaths) -> Fields:
    return {"trusted_ca": {"filename": str(tls.ca)}}


def _own(tls: TlsPaths) -> Fields:
    return {
        "certificate_chain": {"filename": str(tls.cert)},
        "private_key": {"filename": str(tls.key)},
    }


def _secret(name: str, content: Fields) -> Fields:
    kind = "extensions.transport_sockets.tls.v3.Secret"
    return {"@type": TYPES + kind, "name": name, **content}


def _secret_source(folder: Path, name: str) -> Fields:
    return {"name": name, "sds_config": _source(folder / name)}


def _source(path: Path) -> Fields:
    return {"path_config_source": {"path": str(path)}}


def _write(path: Path, resource: Fields) -> None:
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"resources": [resource]}), encoding="utf-8")
    new.replace(path)
