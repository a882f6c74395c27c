"""The details of a status and its trailing metadata, whoever wrote them."""

import grpc
import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpath.client.failure import CallError, failure_of
from warmpath.proto.pb.warmpath.wire.v1 import status_details_pb2 as wire


def told(*trailing: tuple[str, str | bytes]) -> CallError:
    metadata = grpc.aio.Metadata(*trailing)
    code = grpc.StatusCode.UNAVAILABLE
    return failure_of(grpc.aio.AioRpcError(code, grpc.aio.Metadata(), metadata, details="text"))


def details(*of: tuple[str, bytes]) -> bytes:
    made = [wire.Detail(type_url=kind, value=value) for kind, value in of]
    return wire.Status(code=14, details=made).SerializeToString()


INFO = wire.ErrorInfo(reason="TOKENIZER_UNAVAILABLE", metadata={"model": "m"}).SerializeToString()


def test_the_reason_is_that_of_the_error_info_among_the_details() -> None:
    other = "type.googleapis.com/google.rpc.RetryInfo", b"\x0a\x00"
    info = "type.googleapis.com/google.rpc.ErrorInfo", INFO
    assert told(("grpc-status-details-bin", details(other, info))).reason == "TOKENIZER_UNAVAILABLE"
    assert told(("grpc-status-details-bin", details(other))).reason is None
    assert told(("grpc-status-details-bin", details((info[0], b"")))).reason is None
    assert told().reason is None


def test_a_retry_has_a_chance_when_the_details_or_the_pushback_say() -> None:
    kind = "type.googleapis.com/google.rpc.RetryInfo"
    delay = wire.Duration(seconds=1, nanos=500_000_000)
    info = details((kind, wire.RetryInfo(retry_delay=delay).SerializeToString()))
    assert told(("grpc-status-details-bin", info)).retry_after == 1.5
    both = ("grpc-status-details-bin", info), ("grpc-retry-pushback-ms", "20")
    assert told(*both).retry_after == 0.02
    negative = wire.RetryInfo(retry_delay=wire.Duration(seconds=-5)).SerializeToString()
    assert told(("grpc-status-details-bin", details((kind, negative)))).retry_after == 0.0
    at_once = details((kind, wire.RetryInfo().SerializeToString()))
    assert told(("grpc-status-details-bin", at_once)).retry_after == 0.0


def test_the_details_are_the_bytes_of_googles_own_messages() -> None:
    # Written by googleapis-common-protos 1.76.0: Status(code=8, message="m", details=[Any of
    # ErrorInfo(reason="OVERLOADED", domain="d", metadata={"a": "b"})]).
    golden = bytes.fromhex(
        "080812016d1a430a28747970652e676f6f676c65617069732e636f6d2f676f6f"
        "676c652e7270632e4572726f72496e666f12170a0a4f5645524c4f4144454412"
        "01641a060a0161120162"
    )
    assert told(("grpc-status-details-bin", golden)).reason == "OVERLOADED"


@given(st.binary(max_size=80))
def test_details_that_nobody_can_read_hide_no_error(raw: bytes) -> None:
    failure = told(("grpc-status-details-bin", raw))
    assert (failure.code, failure.message) == (grpc.StatusCode.UNAVAILABLE, "text")


@pytest.mark.parametrize(
    ("pushback", "retry_after", "may_repeat"),
    [("0", 0.0, True), ("1500", 1.5, True), ("-1", None, False), ("soon", None, False)],
)
def test_the_router_says_when_to_try_again_or_never(
    pushback: str, retry_after: float | None, *, may_repeat: bool
) -> None:
    failure = told(("grpc-retry-pushback-ms", pushback))
    assert (failure.retry_after, failure.may_repeat) == (retry_after, may_repeat)
