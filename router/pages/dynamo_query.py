"""Parses queries for overlaps: JSON with the prompt's token ids."""

from collections.abc import Collection

from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.prompt.bad_request import BadRequestError
from warmpath.router.prompt.bodies.fields import MOST_VALUES, RawFields, packed_ids, raw_fields
from warmpath.router.prompt.bodies.json_strings import FieldError

TEXTS = ("model_name", "routing_group", "lora_name", "cache_salt")
HASHES = ("block_hashes", "sequence_hashes")
ITEMS = ("block_mm_infos", "mm_routing_info")
FIELDS = {
    "prompt.token_ids_packed": "token_ids",
    "prompt.model": "model_name",
    "prompt.lora": "lora_name",
    "prompt.cache_salt": "cache_salt",
}
"""The query's fields, by the fields of the prompt that is read from them."""
GROUP = "default"
"""The routing group of a query that names none; the router has no other."""
NO_HASHES = (
    "is not supported: the index has keys of its own, which do not follow from Dynamo's hashes; "
    "send token_ids"
)
NO_ITEMS = "is not supported: Dynamo's hashes of items are not the engine's"


async def parse(raw: bytes, most_tokens: int, model: str = "") -> pb.Prompt:
    """Return a query's prompt of at most `most_tokens` ids; `model` is for a query that names none.

    Fields that are not known are ignored, as by Dynamo. Raises BadRequestError.
    """
    try:
        names = ("token_ids", *TEXTS, *HASHES, *ITEMS)
        fields = await raw_fields(raw, names, MOST_VALUES + most_tokens)
        raws = fields.fields.items()
        given = {name for name, raw in raws if bytes(memoryview(raw)[:5]) != b"null"}
        _refuse_unsupported(given)
        ids = await _ids(fields, most_tokens)
        texts = {name: await _text(fields, name) for name in TEXTS if name in given}
    except FieldError as error:
        raise BadRequestError(error.field or "body", error.problem) from error
    if texts.get("routing_group", GROUP) != GROUP:
        raise BadRequestError("routing_group", f"is not {GROUP!r}: a router has no groups of pods")
    return pb.Prompt(
        model=texts.get("model_name", model),
        token_ids_packed=ids,
        lora=texts.get("lora_name", ""),
        cache_salt=texts.get("cache_salt", ""),
    )


def _refuse_unsupported(given: Collection[str]) -> None:
    for name in ITEMS:
        if name in given:
            raise FieldError(NO_ITEMS, name)
    if "token_ids" in given:
        return
    for name in HASHES:
        if name in given:
            raise FieldError(NO_HASHES, name)
    raise FieldError("is missing", "token_ids")


async def _ids(fields: RawFields, most: int) -> bytes:
    raw = fields.fields["token_ids"]
    is_list = bytes(memoryview(raw)[:1]) == b"["
    packed = await packed_ids(raw, "token_ids", most) if is_list else None
    if packed is None:
        raise FieldError("is not a list of integers", "token_ids")
    return packed


async def _text(fields: RawFields, name: str) -> str:
    value = await fields.decoded(name)
    if not isinstance(value, str):
        raise FieldError("is not a string", name)
    return value
