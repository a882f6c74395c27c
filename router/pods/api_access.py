"""Connects to the API server of Kubernetes, with a service account or a kubeconfig."""

import asyncio
import os
from pathlib import Path

from warmpath.router.pods import kubeconfig
from warmpath.router.pods.api_client import Access, ApiClient
from warmpath.router.pods.certificate import trusting
from warmpath.router.pods.discover import SourceError
from warmpath.router.pods.proxy import proxy_of

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
NO_ACCESS = "no service account of a cluster and no kubeconfig"
MOUNT = "mount a service account's token, or name a kubeconfig in the variable KUBECONFIG"


async def connect() -> ApiClient:
    """Return a client with the pod's service account, or else with the user's kubeconfig.

    All files are read anew, as tokens and certificates are renewed. Raises SourceError if there is
    neither, or the kubeconfig has a mistake.
    """
    # A kubeconfig's plugin may run for seconds.
    return ApiClient(await asyncio.to_thread(_access))


def _access() -> Access:
    if (access := _service_account()) is not None:
        return access
    files = kubeconfig.files(os.environ)
    if not files:
        raise SourceError(NO_ACCESS, advice=MOUNT)
    return kubeconfig.read(files, os.environ)


def _service_account() -> Access | None:
    host = os.environ.get("KUBERNETES_SERVICE_HOST")
    port = os.environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        return None
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    try:
        token = (SERVICE_ACCOUNT / "token").read_text().strip()
        authority = (SERVICE_ACCOUNT / "ca.crt").read_text()
    except FileNotFoundError:
        return None
    return Access(server, token, trusting(authority), proxy=proxy_of(server, os.environ))
