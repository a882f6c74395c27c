"""What a caller gives in place of a name, a list or a figure: refused before anything is sent."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any
from uuid import UUID

import pytest

from warmpath import Index, Picker, Scorer
from warmpath.client.sync_client import Client

IDS = [1, 2, 3]
NAME: Any = UUID(int=7)
NO_LIST = r"^pods is of type str; give a list of pods' ids$"


@pytest.fixture
def client() -> Iterator[Client]:
    with closing(Client("127.0.0.1:1", model="m")) as client:
        yield client


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.score(IDS, pods="pod-1"),
        lambda client: client.pick(IDS, pods="pod-1"),
        lambda client: client.explain(IDS, pods="pod-1"),
        lambda client: next(client.score_stream([IDS], pods="pod-1")),
        lambda _: Scorer(Index("m")).score(IDS, pods="pod-1"),
        lambda _: Picker(Index("m")).pick(IDS, pods="pod-1"),
    ],
)
def test_one_pod_in_place_of_a_list_is_refused_instead_of_taking_its_characters_for_pods(
    client: Client, call: Callable[[Client], object]
) -> None:
    with pytest.raises(TypeError, match=NO_LIST):
        call(client)


@pytest.mark.parametrize("field", ["policy", "session", "booking_id", "priority", "tenant"])
def test_a_name_that_is_no_text_is_refused_with_its_field(client: Client, field: str) -> None:
    names: dict[str, Any] = {field: NAME}
    with pytest.raises(TypeError, match=rf"^{field} is of type UUID, not str$"):
        client.pick(IDS, **names)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda client: client.report(NAME, "finished"), "booking_id"),
        (lambda client: client.report("mine", "started", pod=NAME), "pod"),
        (lambda client: client.score(IDS, strategy=NAME), "strategy"),
        (lambda client: client.pods(NAME), "model"),
        (lambda client: client.decisions(pod=NAME), "pod"),
        (lambda client: client.diagnose(NAME), "model"),
        (lambda _: Picker(Index("m")).pick(IDS, booking_id=NAME), "booking_id"),
    ],
)
def test_other_calls_refuse_it_too(
    client: Client, call: Callable[[Client], object], field: str
) -> None:
    with pytest.raises(TypeError, match=rf"^{field} is of type UUID, not str$"):
        call(client)


def test_a_figure_that_is_no_integer_is_refused_with_its_field(client: Client) -> None:
    figure: Any = "3"
    with pytest.raises(TypeError, match=r"^cached_tokens is of type str, not int$"):
        client.report("mine", "finished", cached_tokens=figure)
    figure = 1.5
    with pytest.raises(TypeError, match=r"^limit is of type float, not int$"):
        client.decisions(figure)
