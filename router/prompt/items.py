"""Multimodal items of a prompt, checked."""

from collections.abc import Sequence

from indexer.keys.extra import Item
from router.pb.warmpath.v1 import router_pb2 as pb
from router.pb.warmpath.wire.v1 import score_request_pb2 as wire
from router.prompt.bad_request import BadRequestError
from router.prompt.bounds import check_name


def read_items(message: pb.Prompt | wire.Prompt, tokens: int | None) -> tuple[Item, ...]:
    """Return the multimodal items; `tokens` is None where a text may not be wholly tokenised."""
    items = []
    end = 0
    given: Sequence[pb.MultimodalItem | wire.MultimodalItem] = message.multimodal
    for position, item in enumerate(given):
        field = f"prompt.multimodal[{position}]"
        if not item.hash:
            raise BadRequestError(f"{field}.hash", "is empty")
        check_name(f"{field}.hash", item.hash)
        if not item.length:
            raise BadRequestError(f"{field}.length", "is 0; an item has at least one token")
        if item.offset < end:
            raise BadRequestError(
                f"{field}.offset", f"is {item.offset}, before the last item's end"
            )
        end = item.offset + item.length
        if tokens is not None and end > tokens:
            raise BadRequestError(field, f"ends at token {end}; the prompt has {tokens}")
        items.append(Item(item.hash, item.offset, item.length))
    return tuple(items)
