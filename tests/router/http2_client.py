"""An HTTP/2 client that can do more than gRPC libraries: accept no answer, and reset calls at once."""

from tests.h2grpc.http2 import raw_frames as raw
from tests.h2grpc.http2.hostile_client import HostileClient


class Http2Client(HostileClient):
    """A connection on whose streams the server may send `window` bytes of data (RFC 9113, 6.9.2)."""

    def __init__(
        self,
        address: str,
        *,
        window: int = 0,
        service: str = "warmpath.v1.Router",
        source: str = "",
        acks: bool = True,
    ) -> None:
        preface = raw.PREFACE + raw.settings(window=window)
        super().__init__(address, preface=preface, source=source, acks=acks)
        self._service = service
        self._stream = -1

    def call(self, method: str, *messages: bytes, reset: bool = False) -> int:
        """Send a whole call of the service; with `reset`, cancel it in the same write."""
        self._stream += 2
        whole = raw.call(self._stream, method, *messages, service=self._service)
        self.send(whole, raw.reset(self._stream) if reset else b"")
        return self._stream

    def begin(self, method: str) -> None:
        """Begin a call, and send no message."""
        self._stream += 2
        self.send(raw.headers(self._stream, raw.fields(method, service=self._service)))

    def cancel(self, stream: int) -> None:
        self.send(raw.reset(stream))
