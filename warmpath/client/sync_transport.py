"""A transport for blocking clients of httpx2 and httpx: requests go to the picked pods."""

from collections.abc import Iterator, Mapping
from functools import cache
from types import ModuleType
from typing import Any

from warmpath.client import sync_client as clients
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

    class WatchedStream(http.SyncByteStream):  # type: ignore[misc,name-defined]
        def __init__(self, response: Any, picked: Request) -> None:
            self._stream = response.stream
            self._watch = ResponseWatch(picked, response)

        def __iter__(self) -> Iterator[bytes]:
            for chunk in self._stream:
                self._watch.feed(chunk)
                yield chunk
            self._watch.end()

        def close(self) -> None:
            self._watch.close()
            self._stream.close()

    class Transport(http.BaseTransport):  # type: ignore[misc,name-defined]
        """Sends each request to a pod that a router picks, and reports its progress and its end."""

        def __init__(self, client: clients.Client, over: Any, options: Mapping[str, Any]) -> None:
            self._client = client
            self._over = http.HTTPTransport() if over is None else over
            self._options = options

        def handle_request(self, request: Any) -> Any:
            prompt, model = read_request(request.url.path, request.read())
            told = {"model": model, "client": client_of(request.headers), **self._options}
            try:
                picked = self._client.begin(prompt, **told)
            except CallError as error:
                if refused := refusal_of(error):
                    status, headers, content = refused
                    return http.Response(status, headers=headers, stream=http.ByteStream(content))
                # Without a router, and with no pod known, the URL's own address is left.
                return self._over.handle_request(request)
            try:
                response = self._sent(request, picked)
            except BaseException:
                picked.fail()
                raise
            response.stream = WatchedStream(response, picked)
            return response

        def _sent(self, request: Any, picked: Request) -> Any:
            """Send a request to the first pod that can be reached; raise the last one's error."""
            failure: Exception | None = None
            for pod in picked.endpoints():
                headers = request.headers.copy()
                headers.update({"host": pod.address, **rank_header(picked, pod)})
                try:
                    return self._over.handle_request(
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

        def close(self) -> None:
            self._over.close()

    return Transport
