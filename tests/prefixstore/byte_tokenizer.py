"""A reference of the contract of tokenizers that needs no files."""

from collections.abc import Sequence

from warmpath.prefixstore.tokenizers.tokenizer import pack_ids


class ByteTokenizer:
    """One token per byte of UTF-8, and a begin token; texts may be cut between any two characters."""

    vocab_size = 257
    prefix = (256).to_bytes(4, "little")
    suffix = b""
    has_cuts = True

    def cut(self, raw: bytes, begin: int, end: int) -> int:
        at = end - 1
        while at > begin and raw[at] & 0xC0 == 0x80:
            at -= 1
        return max(at, begin)

    def encode(self, parts: Sequence[bytes], *, at_start: bool) -> list[bytes]:  # noqa: ARG002  alike everywhere
        return [pack_ids(list(part)) for part in parts]
