"""A request's place in the order that lets short prompts go before longer ones.

The queue releases requests in this order (docs/queue.md#who-goes-when), and engines may begin prompts
in it (`PickResponse.engine_priority`). By it a passed request is told from one whose report is lost.
"""


def place(arrived: float, prefill: float, times: float) -> float:
    """Return a request's place in seconds, the least first; `arrived` and `prefill` are seconds.

    A request whose prefill is s seconds shorter goes before those that arrived up to `times` s earlier.
    """
    return arrived + times * prefill
