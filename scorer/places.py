"""Turns keys of several parts into one cost, for policies that compare lexicographically.

If one part outweighs another at any size (the longest prefix, and only then the load), a weighted sum
would need weights so far apart that the lesser part is lost in rounding.
"""

import numpy as np

from warmpath.scorer.load_columns import Column


def places(*parts: Column) -> Column:
    """Return each key's place among the distinct keys: 0 for the least; equal keys have the same place.

    The columns `parts` hold the parts of all keys, the most important column first.
    """
    order = np.lexsort(parts[::-1])
    differs = np.zeros(len(order), dtype=np.bool_)
    for part in parts:
        differs[1:] |= np.diff(part[order]) != 0
    found = np.empty(len(order))
    found[order] = np.cumsum(differs)
    return found
