"""Shortens texts that quote a peer."""


def shortened(text: str, most: int) -> str:
    """Return a text, or the two ends of a text that is longer than `most` characters."""
    if len(text) <= most:
        return text
    cut = f" … {len(text) - most} characters … "
    kept = max(0, most - len(cut)) // 2
    return text[:kept] + cut + text[len(text) - kept :]
