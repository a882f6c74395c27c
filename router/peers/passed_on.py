"""Passes reports on to the routers that made the picks, where routers share no bookings.

A gateway with several routers asks one for the pick and may report to another. It names the address at
which it has reached the first one.
"""

import asyncio
from collections import OrderedDict
from contextlib import suppress

import grpc
from google.protobuf.message import DecodeError

from warmpath.process.address import HostPort, is_host_port
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.peers.booking_id import router_of

METHOD = "/warmpath.v1.Router/Report"
SECONDS = 2.0
"""Longest time that a report may take; a router that does not answer has lost its bookings."""
MOST_ROUTERS = 64
MOST_UNDERWAY = 1024
"""Most reports that may be under way; further ones are lost, and their bookings expire."""


class PassedOn:
    """Sends reports to other routers than `own`. A connection to each is kept."""

    def __init__(self, own: str) -> None:
        self._own = own
        self.taken = 0
        """Reports on bookings that their router has."""
        self.lost = 0
        """Reports that could not be sent or that nobody answered, and those on bookings that have ended:
        another router may have the address by now."""
        self._channels: OrderedDict[str, grpc.aio.Channel] = OrderedDict()
        self._underway: set[asyncio.Task[None]] = set()

    def add(self, booking: str, address: str, report: bytes) -> bool:
        """Send a ReportRequest to the router at an address, IP:PORT; return False if it cannot be sent.

        The address is that of the router that made the booking; one of `own` has ended.
        """
        if not address or router_of(booking) in ("", self._own):
            return False
        is_reachable = is_host_port(address) and HostPort.of(address).is_ip
        if len(self._underway) >= MOST_UNDERWAY or not is_reachable:
            self.lost += 1
            return False
        task = asyncio.get_running_loop().create_task(self._send(address, report))
        self._underway.add(task)
        task.add_done_callback(self._underway.discard)
        return True

    async def _send(self, address: str, report: bytes) -> None:
        try:
            channel = await self._channel(address)
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(METHOD)
            answer = pb.ReportResponse.FromString(await call(report, timeout=SECONDS))
        except (grpc.RpcError, DecodeError):
            self.lost += 1
        else:
            self.taken += answer.known
            self.lost += not answer.known

    async def _channel(self, address: str) -> grpc.aio.Channel:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = grpc.aio.insecure_channel(address)
        self._channels.move_to_end(address)
        if len(self._channels) > MOST_ROUTERS:
            _, oldest = self._channels.popitem(last=False)
            await oldest.close()
        return channel

    async def close(self) -> None:
        """Wait for the reports that are under way, and close all connections."""
        if self._underway:
            with suppress(TimeoutError):
                await asyncio.wait(self._underway, timeout=SECONDS)
        for channel in self._channels.values():
            await channel.close()
