"""What `from warmpath.lab.simworker.v1 import ...` offers."""

from warmpath.lab.simworker import v1
from warmpath.lab.simworker.v1.cache.kv_cache_manager import KVCacheManager


def test_every_public_name_is_there_once() -> None:
    names = v1.__all__
    assert len(set(names)) == len(names)
    assert [name for name in names if not hasattr(v1, name)] == []


def test_names_are_those_of_the_parts() -> None:
    assert v1.KVCacheManager is KVCacheManager
