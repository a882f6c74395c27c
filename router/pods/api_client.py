"""Asks an API server of Kubernetes over HTTP, with what a service account or kubeconfig gives."""

import ssl
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from warmpath.process.command_line import version

MOST_LINE_BYTES = 4 << 20
"""A longer event of a watch is an error; an object in etcd has 1.5 MiB at most."""


@dataclass(frozen=True, slots=True)
class Access:
    """The way to an API server."""

    server: str
    """Its URL, without a slash at the end."""
    token: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None
    """None: it is asked over plain HTTP."""
    tls_name: str = ""
    """The name in its certificate; empty: its host."""
    proxy: str = field(default="", repr=False)
    """The URL of a proxy, which may have a password; empty: none."""


class ApiClient:
    """A client of one API server. Close it after use."""

    def __init__(self, access: Access) -> None:
        self.server = access.server
        headers = {"Accept": "application/json", "User-Agent": f"warmpath/{version()}"}
        if access.token:
            headers["Authorization"] = f"Bearer {access.token}"
        # aiohttp takes a line of twice its buffer.
        self._session = aiohttp.ClientSession(headers=headers, read_bufsize=MOST_LINE_BYTES // 2)
        self._options: dict[str, Any] = {
            "ssl": access.tls or True,
            "server_hostname": access.tls_name or None,
            "proxy": access.proxy or None,
            # The token is for this server only.
            "allow_redirects": False,
        }

    async def get(self, path: str, seconds: float, query: dict[str, str]) -> aiohttp.ClientResponse:
        """Ask for a path. The answer has to end within `seconds`."""
        timeout = aiohttp.ClientTimeout(total=seconds)
        return await self._session.get(
            self.server + path, params=query, timeout=timeout, **self._options
        )

    async def close(self) -> None:
        await self._session.close()
