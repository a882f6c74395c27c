"""The media type of a content, by its headers."""

ENCODED = "encoded"
"""The kind of a content that is compressed, which is never decompressed."""


def kind_of(content_type: str, content_encoding: str) -> str:
    """Return the media type by the headers of these names, or ENCODED; empty if they name none."""
    if content_encoding.strip().lower() not in ("", "identity"):
        return ENCODED
    return content_type.partition(";")[0].strip().lower()


def is_json(kind: str) -> bool:
    """Return whether a content of this kind may be JSON."""
    return kind in ("", "application/json") or kind.endswith("+json")
