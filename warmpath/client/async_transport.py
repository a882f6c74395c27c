"""A transport for asynchronous clients of httpx2 and httpx: requests go to the picked pods."""

from collections.abc import AsyncIterator, Mapping
from functools import cache
from types import ModuleType
from typing import Any

from warmpath.client import async_client as clients
from warmpath.client.failure import CallError
from warmpath.client.http_exchange import (
    ResponseWatch,
    client_of,
    rank_header,
    read_request,
    refusal_of,
)
from warmpath.client.request import Request


@cache
def transport_of(http: ModuleType) -> Any:
    """Return the class of transports for a library, which is httpx2 or httpx."""

    class WatchedStream(http.AsyncByteStream):  # type: ignore[misc,name-defined]
        def __init__(self, response: Any, picked: Request) -> None:
            self._stream = response.stream
            self._watch = ResponseWatch(picked, response)

        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for chunk in self._stream:
                self._watch.feed(chunk)
                yield chunk
            self._watch.end()

        async def aclose(self) -> None:
            self._watch.close()
            await self._stream.aclose()

    class AsyncTransport(http.AsyncBaseTransport):  # type: ignore[misc,name-defined]
        """Sends each request to a pod that a router picks, and reports its progress and its end."""

        def __init__(
            self, client: clients.AsyncClient, over: Any, options: Mapping[str, Any]
        ) -> None:
            self._client = client
            self._over = http.AsyncHTTPTransport() if over is None else over
            self._options = options

        async def handle_async_request(self, request: Any) -> Any:
            prompt, model = read_request(request.url.path, await request.aread())
            told = {"model": model, "client": client_of(request.headers), **self._options}
            try:
                picked = await self._client.begin(prompt, **told)
            except CallError as error:
                if refused := refusal_of(error):
                    status, headers, content = refused
                    return http.Response(status, headers=headers, stream=http.ByteStream(content))
                # Without a router, and with no pod known, the URL's own address is left.
                return await self._over.handle_async_request(request)
            try:
                response = await self._sent(request, picked)
            except BaseException:
                picked.fail()
                raise
            response.stream = WatchedStream(response, picked)
            return response

        async def _sent(self, request: Any, picked: Request) -> Any:
            """Send a request to the first pod that can be reached; raise the last one's error."""
            failure: Exception | None = None
            for pod in picked.endpoints():
                headers = request.headers.copy()
                headers.update({"host": pod.address, **rank_header(picked, pod)})
                try:
                    return await self._over.handle_async_request(
                        http.Request(
                            request.method,
                            request.url.copy_with(netloc=pod.address.encode()),
                            headers=headers,
                            stream=request.stream,
                            extensions=request.extensions,
                        )
                    )
                except (http.ConnectError, http.ConnectTimeout) as error:
                    failure = error
            assert failure is not None, "a pick names a pod"
            raise failure

        async def aclose(self) -> None:
            await self._over.aclose()

    return AsyncTransport
