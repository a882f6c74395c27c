"""The weighing as one compiled function, from loads and holdings to the order of the candidates.

Its steps are plain Python, each in the room of what it computes. NumPy would take 40 calls for them, of
two microseconds each.
"""

import numpy as np
from numpy.typing import NDArray

from warmpath.indexer.compiled.jit import at_once, inner
from warmpath.router.load import table
from warmpath.router.pick import calibration, traffic
from warmpath.router.pick.options import AVERAGE_CACHED, CHEAPEST, FULLEST, WARMEST
from warmpath.scorer import columns
from warmpath.scorer import weigh as weighing
from warmpath.scorer.columns import CACHED, COST, PREFILL, WAIT, Column, Figures
from warmpath.scorer.policies import warmpath
from warmpath.scorer.weigh import KNOWN, ON_THEIR_WAY, ROUNDED, SENT, Held

FILLS, ADDS, ORDERS, ALL = 1, 2, 4, 7
"""What to do: fill in the figures, add up the costs of the default policy, put candidates in order."""

BUSY, FULL, UTILISATION, FULL_SHARE = range(4)
"""Places of what is found besides: the shares of ranks at this moment, and on average."""
FOUND = 8
"""The number of places; the others are in `router.pick.options`."""

copy = inner(table.copy)
shares_of = inner(traffic.shares_of)
calibrate = inner(calibration.calibrate)
displace = inner(weighing.displace)
warm = inner(weighing.warm)
rounded = inner(weighing.rounded)
put_in_order = inner(weighing.put_in_order)
add_up = inner(warmpath.add_up)

ROWS, ROW = "float64[:, ::1]", "float64[::1]"
ARRAYS = (
    f"{ROWS}, {ROWS}, intp[::1], {ROWS}, intp[::1], {ROWS}, {ROW}, {ROWS}, {ROWS}, int64[:, ::1]"
)
SIGNATURE = f"void(int64, {ARRAYS}, {', '.join(3 * [ROW] + 7 * ['float64'])})"


@at_once(SIGNATURE, columns, weighing, warmpath, table, traffic, calibration)
def weigh(  # noqa: PLR0917  as compiled functions take their arrays
    steps: int,
    figures: Figures,
    loads: Figures,
    rows: NDArray[np.intp],
    held: Held,
    kinds: NDArray[np.intp],
    far: Figures,
    ahead: Column,
    free: Figures,
    keys: Figures,
    order: NDArray[np.int64],
    model: Column,
    options: Column,
    found: Column,
    now: float,
    tokens: float,
    usual: float,
    busy: float,
    full: float,
    weight: float,
    long_share: float,
) -> None:
    """Do what `steps` says; each function that is called here says what it needs.

    `ahead` are seconds to add to the ranks' waits; it may be empty. `free` is as for `displace`.
    `busy`, `full` and `weight` are as `Traffic.before` returns them.
    """
    if steps & FILLS:
        copy(figures, loads, rows, now)
        found[BUSY], found[FULL] = shares_of(figures)
        found[UTILISATION] = busy + weight * (found[BUSY] - busy)
        found[FULL_SHARE] = full + weight * (found[FULL] - full)
        for at in range(len(ahead)):
            figures[WAIT, at] += ahead[at]
        warm(figures, held, kinds, tokens, model)
        calibrate(figures, usual, far, found[UTILISATION])
        displace(figures, free, tokens)
    if steps & ADDS:
        add_up(figures, options, found[UTILISATION], found[FULL_SHARE], long_share)
    if steps & ORDERS:
        for at in range(order.shape[1]):
            keys[ROUNDED, at] = rounded(figures[COST, at])
        put_in_order(figures, keys, order)
        cached, cheapest = 0.0, 0
        best = fullest = order[0, 0]
        most, most_known = 0.0, 0.0
        for nth in range(order.shape[1]):
            cached += figures[CACHED, nth]
            if figures[PREFILL, nth] < figures[PREFILL, cheapest]:
                cheapest = nth
            at = order[0, nth]
            kind = kinds[at]
            tokens_held = max(held[kind, KNOWN], held[kind, ON_THEIR_WAY], held[kind, SENT])
            if tokens_held > most:
                most, best = tokens_held, at
            if held[kind, KNOWN] > most_known:
                most_known, fullest = held[kind, KNOWN], at
        found[AVERAGE_CACHED] = cached / order.shape[1]
        found[CHEAPEST], found[WARMEST], found[FULLEST] = cheapest, best, fullest
