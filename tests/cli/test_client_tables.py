"""The tables of `warmpath pods` and `score`."""

from tests.cli.conftest import Output
from warmpath.cli.asking import _pods_table, _score_table, print_rich
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb

NAME = "pod-1[/b]"


def test_names_and_addresses_in_brackets_are_shown_as_they_are(output: Output) -> None:
    listed = pb.ListPodsResponse()
    listed.pods.add(id=NAME, address="[fd00::5]:8000", model="m[bold]").ranks.add()
    print_rich(_pods_table(listed))
    shown = output.out()
    assert all(name in shown for name in (NAME, "[fd00::5]:8000", "m[bold]"))
    scored = pb.ScoreResponse()
    scored.scores.add(pod=NAME)
    print_rich(_score_table(scored))
    assert NAME in output.out()
