"""The transport that sends an OpenAI client's requests to the picked pods."""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Unpack, overload

from warmpath.client import async_transport, sync_transport
from warmpath.client.async_client import AsyncClient
from warmpath.client.request import RequestOptions
from warmpath.client.sync_client import Client

if TYPE_CHECKING:
    import httpx2


@overload
def openai(
    client: Client, /, over: Any = None, **options: Unpack[RequestOptions]
) -> "httpx2.BaseTransport": ...
@overload
def openai(
    client: AsyncClient, /, over: Any = None, **options: Unpack[RequestOptions]
) -> "httpx2.AsyncBaseTransport": ...
def openai(
    client: Client | AsyncClient, /, over: Any = None, **options: Unpack[RequestOptions]
) -> Any:
    """Return a transport for `OpenAI(http_client=httpx2.Client(transport=…))`, or another httpx client.

    Each request goes to the pod that `client`'s router picks, or to the next one if that cannot be
    reached; its first token, usage and end are reported. If the router refuses it, the response is
    404 (UNKNOWN_MODEL), 429 (QUEUE_FULL) or 503 (NO_POD). If there is no pick and no pod is known, it
    goes to its URL's own host. With an AsyncClient the transport is for `AsyncOpenAI`.

    `over` sends the requests, by default a new HTTPTransport; one of httpx makes the transport one for
    httpx, which openai had before 3.0. `options` are `begin`'s, for all requests. Raises ImportError
    where neither httpx2 nor httpx is installed.
    """
    http = _library() if over is None else import_module(type(over).__module__.partition(".")[0])
    kind = async_transport if isinstance(client, AsyncClient) else sync_transport
    return kind.transport_of(http)(client, over, options)


def _library() -> ModuleType:
    for name in ("httpx2", "httpx"):
        try:
            return import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
    raise ImportError("warmpath.openai needs httpx2 (or httpx): pip install httpx2")
