"""Connects to the API server of Kubernetes, with a service account or a kubeconfig."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from warmpath.process.command_line import in_words
from warmpath.router.pods import kubeconfig
from warmpath.router.pods.api_client import Access, ApiClient
from warmpath.router.pods.certificate import trusting
from warmpath.router.pods.discover import SourceError
from warmpath.router.pods.proxy import proxy_of
from warmpath.router.pods.refusal import REACH

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
NO_ACCESS = "no service account of a cluster and no kubeconfig"
MOUNT = "mount a service account's token, or name a kubeconfig in the variable KUBECONFIG"
CUT = "the connection was closed in the middle of an answer"


@asynccontextmanager
async def connected(own: ApiClient | None) -> AsyncIterator[ApiClient]:
    """Provide a client, `own` or a new one. Make a SourceError of whatever keeps it from asking."""
    api = own
    try:
        api = api or await connect()
        yield api
    except SourceError:
        raise
    except (OSError, aiohttp.ClientError, ValueError) as error:
        at = f"the API server at {api.server}: " if api else ""
        is_cut = isinstance(error, aiohttp.ClientPayloadError)
        problem = at + (CUT if is_cut else in_words(error) or type(error).__name__)
        raise SourceError(problem, advice=REACH) from error
    finally:
        if api is not None and api is not own:
            await api.close()


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
