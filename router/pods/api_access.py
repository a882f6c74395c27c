"""Connects to the API server of Kubernetes, with a service account or a kubeconfig."""

import os
from pathlib import Path
from typing import Any

from warmpath.process.command_line import version
from warmpath.router.pods.discover import SourceError

NO_ACCESS = "no service account of a cluster and no kubeconfig"
MOUNT = "mount a service account's token, or name a kubeconfig in the variable KUBECONFIG"


async def connect() -> Any:
    """Return a client with the pod's service account, or else with the user's kubeconfig.

    Raises SourceError if there is neither.
    """
    from kubernetes_asyncio import client  # noqa: PLC0415  an extra
    from kubernetes_asyncio import config as access  # noqa: PLC0415
    from kubernetes_asyncio.config import kube_config  # noqa: PLC0415

    try:
        access.load_incluster_config()  # type: ignore[no-untyped-call]
    except access.ConfigException as error:
        # Without a file the library would log a warning for each try.
        if not _is_there(kube_config.KUBE_CONFIG_DEFAULT_LOCATION):
            raise SourceError(NO_ACCESS, advice=MOUNT) from error
        try:
            await access.load_kube_config()
        except (access.ConfigException, TypeError, ValueError) as failure:
            problem = f"the kubeconfig cannot be used: {failure}"
            raise SourceError(problem, advice=MOUNT) from failure
    api = client.ApiClient()
    api.user_agent = f"warmpath/{version()}"
    return api


def _is_there(kubeconfig: str) -> bool:
    return any(Path(name).expanduser().is_file() for name in kubeconfig.split(os.pathsep) if name)
