"""The batches that one rank of an engine has published, by asking its replay endpoint."""

from collections import Counter

import zmq
import zmq.asyncio

from warmpath.indexer.engines import vllm
from warmpath.indexer.engines.event import Event, Removed, Stored

END = (-1).to_bytes(8, "big", signed=True)


class Published:
    """All batches of one rank since its engine's start, in order."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._socket: zmq.asyncio.Socket | None = None
        self.batches: list[bytes] = []
        """Payloads, by their number."""
        self.last_change = -1
        """The number of the last batch that changed which blocks are held; -1 before the first.

        A publisher passes on no other: another copy of a block that is held changes nothing.
        """
        self._copies: Counter[int] = Counter()

    def events(self, since: int) -> list[list[Event]]:
        """Return the events of each batch from a number on."""
        return [list(vllm.decode(payload).events) for payload in self.batches[since:]]

    async def catch_up(self) -> None:
        """Fetch every batch that the engine made before this call.

        vLLM's publisher thread answers a request between two looks into its queue, and a look takes one
        batch. So when an answer has nothing new, the queue was empty at the answer before it.
        """
        await self._ask()
        while await self._ask():
            pass

    async def _ask(self) -> int:
        """Ask for the batches after those at hand; return how many there were."""
        if self._socket is None:
            self._socket = zmq.asyncio.Context.instance().socket(zmq.DEALER)
            self._socket.linger = 0
            self._socket.connect(self._endpoint)
        await self._socket.send_multipart([b"", len(self.batches).to_bytes(8, "big")])
        new = 0
        while True:
            _, _, number, payload = await self._socket.recv_multipart()
            if number == END:
                return new
            assert int.from_bytes(number, "big") == len(self.batches)
            if self._changes(payload):
                self.last_change = len(self.batches)
            self.batches.append(payload)
            new += 1

    def _changes(self, payload: bytes) -> bool:
        before = +self._copies
        for event in vllm.decode(payload).events:
            if isinstance(event, Stored):
                self._copies.update(event.hashes)
            elif isinstance(event, Removed):
                self._copies.subtract(event.hashes)
            else:
                self._copies.clear()
        return (+self._copies).keys() != before.keys()

    def forget(self) -> None:
        """Begin anew with the engine's next life."""
        self.batches.clear()
        self._copies.clear()
        self.last_change = -1
        self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
