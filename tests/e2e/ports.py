"""Ports for several processes of one router."""

from bench.servers import free_ports


def two_in_a_row() -> int:
    while True:
        first = free_ports(1)[0]
        import socket

        try:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", first + 1))
        except OSError:
            continue
        return first
