"""A configuration that is written reads as the same one."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from warmpath.router.config.read import _toml
from warmpath.router.config.schema import (
    Config,
    HubTable,
    ModelSpec,
    PickTable,
    PodSetSpec,
    PodSpec,
    ServerTable,
)
from warmpath.router.config.write import as_toml

TEXT = st.text(max_size=20)
MODELS = st.builds(
    ModelSpec, name=TEXT, aliases=st.lists(TEXT, max_size=2),
    hub=st.builds(HubTable, repo=TEXT, files=st.dictionaries(TEXT, TEXT, max_size=2)),
)  # fmt: skip
CONFIGS = st.builds(
    Config, models=st.lists(MODELS, max_size=3), server=st.builds(ServerTable, listen=TEXT),
    pick=st.builds(PickTable, options=st.dictionaries(TEXT, st.floats(0, 1e300), max_size=2)),
    pods=st.lists(st.builds(PodSpec, id=TEXT, model=TEXT, address=TEXT), max_size=2),
    pod_sets=st.lists(st.builds(PodSetSpec, name=TEXT, model=TEXT, dns=TEXT), max_size=2),
)  # fmt: skip


@given(CONFIGS)
def test_a_written_configuration_reads_as_itself(config: Config) -> None:
    read = msgspec.convert({"models": []} | _toml(as_toml(config), "test"), Config)
    assert read == config
