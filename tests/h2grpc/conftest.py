"""The attacks of hostile clients."""

from tests.h2grpc.http2.attacked import attack

__all__ = ["attack"]
