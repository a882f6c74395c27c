"""Texts that quote what somebody else said, however long that was."""


def shortened(text: str, most: int) -> str:
    """Return a text of at most `most` characters: of a longer one both ends, which tell most."""
    if len(text) <= most:
        return text
    cut = f" … {len(text) - most} characters … "
    kept = max(0, most - len(cut)) // 2
    return text[:kept] + cut + text[len(text) - kept :]
