"""The id that a caller gives to its request."""

from warmpath.router.tracing.steps import MOST_CHARS, request_id_of


def test_it_is_the_first_x_request_id_and_its_beginning_where_it_is_long() -> None:
    assert request_id_of([("a", "b"), ("x-request-id", "one"), ("x-request-id", "two")]) == "one"
    assert request_id_of([("x-request-id", "r" * 9000)]) == "r" * MOST_CHARS
    assert not request_id_of([("x-request-id", b"\xff"), ("a", "b")])
