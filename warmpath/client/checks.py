"""The figures of the contract's messages. Protobuf refuses others without the name of the field."""

from operator import index

MOST_FIGURE = (1 << 32) - 1


def check_figure(name: str, value: int | None) -> None:
    """Raise ValueError, naming the field and the limit, unless a figure fits or is not given.

    Raises TypeError for what is no integer.
    """
    if value is None:
        return
    try:
        index(value)
    except TypeError:
        raise TypeError(f"{name} is of type {type(value).__name__}, not int") from None
    if not 0 <= value <= MOST_FIGURE:
        raise ValueError(f"{name} is {value}; it must be 0 to {MOST_FIGURE}")
