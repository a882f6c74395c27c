"""The figures of the contract's messages. Protobuf refuses others without the name of the field."""

MOST_FIGURE = (1 << 32) - 1


def check_figure(name: str, value: int | None) -> None:
    """Raise ValueError, naming the field and the limit, unless a figure fits or is not given."""
    if value is not None and not 0 <= value <= MOST_FIGURE:
        raise ValueError(f"{name} is {value}; it must be 0 to {MOST_FIGURE}")
