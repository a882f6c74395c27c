"""From keys of several parts to one cost.

Where one thing outweighs another whatever their sizes (the longest prefix, and only then the load),
a weighted sum would need weights so far apart that the lesser part is lost in rounding.
"""

from collections.abc import Sequence


def places(keys: Sequence[tuple[float, ...]]) -> list[float]:
    """Return each key's place among the distinct ones: 0 for the least, equal keys share one."""
    place = {key: float(at) for at, key in enumerate(sorted(set(keys)))}
    return [place[key] for key in keys]
