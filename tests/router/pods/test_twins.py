"""Two pods that are one engine are found, wherever each of them comes from."""

import pytest

from tests.router.pods.test_discover import Follower
from warmpath.router.config.schema import PodSpec
from warmpath.router.pods.discover import Reconciler, twins
from warmpath.router.pods.names import FoundPod


def pod(
    name: str, *, model: str = "m", address: str = "h:1", first: int = 0, ranks: int = 1
) -> PodSpec:
    return PodSpec(name, model, address, first_rank=first, ranks=ranks)


@pytest.mark.parametrize(
    ("one", "other", "are_twins"),
    [
        (pod("a"), pod("b"), True),
        (pod("a", ranks=2), pod("b", first=1), True),
        (pod("a"), pod("b", address="h:2"), False),
        (pod("a"), pod("b", model="n"), False),
        # An engine whose ranks publish on several machines is a pod for each of these.
        (pod("a", ranks=2), pod("b", first=2), False),
    ],
)
def test_pods_of_one_model_with_one_address_and_a_rank_in_common_are_twins(
    one: PodSpec, other: PodSpec, are_twins: bool
) -> None:
    pods = [("here", one), ("there", other)]
    assert list(twins(pods)) == ([(pods[1], pods[0])] if are_twins else [])


async def test_the_log_names_both_pods_and_their_sources_until_one_is_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reconciler = Reconciler(Follower())
    both = {"b": FoundPod(pod("b")), "c": FoundPod(pod("c", address="h:2"))}
    await reconciler.reconcile("the configuration", {"a": FoundPod(pod("a"))})
    assert not caplog.messages
    for _ in range(2):
        await reconciler.reconcile("pods-file p", both)
        [told] = caplog.messages
        twin = "pod b of pods-file p: 'h:1' is also the address of pod 'a' of the configuration"
        assert told.startswith(twin)
    await reconciler.reconcile("pods-file p", {})
    await reconciler.reconcile("pods-file p", both)
    assert len(caplog.messages) == 2, "it is news again"
