"""From keys of several parts to one cost.

Where one thing outweighs another whatever their sizes (the longest prefix, and only then the load),
a weighted sum would need weights so far apart that the lesser part is lost in rounding.
"""

import numpy as np

from scorer.load_columns import Column


def places(*parts: Column) -> Column:
    """Return each key's place among the distinct ones: 0 for the least, equal keys share one.

    A key's parts are in the columns `parts` at its place, the one that outweighs the others first.
    """
    order = np.lexsort(parts[::-1])
    differs = np.zeros(len(order), dtype=np.bool_)
    for part in parts:
        differs[1:] |= np.diff(part[order]) != 0
    found = np.empty(len(order))
    found[order] = np.cumsum(differs)
    return found
