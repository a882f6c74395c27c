"""Checks a request's multimodal items, which are in the order of their placeholder tokens."""

from warmpath.indexer.keys.extra import Item
from warmpath.router.prompt.bad_request import BadRequestError
from warmpath.router.prompt.limits import check_name


def check_item(field: str, item: Item, *, begin: int, tokens: int | None) -> int:
    """Check an item's hash and its placeholder tokens; return the position of the token after them.

    The item before it ends at the position `begin`. `tokens` is the prompt's number of tokens, None
    where it is not known. Raises BadRequestError.
    """
    if not item.hash:
        raise BadRequestError(f"{field}.hash", "is empty")
    check_name(f"{field}.hash", item.hash)
    if item.length < 1:
        raise BadRequestError(
            f"{field}.length", f"is {item.length}; an item has at least one token"
        )
    if item.offset < begin:
        raise BadRequestError(
            f"{field}.offset", f"is {item.offset}; the item before it ends at {begin}"
        )
    end = item.offset + item.length
    if tokens is not None and end > tokens:
        raise BadRequestError(field, f"ends at token {end}; the prompt has {tokens} tokens")
    return end
