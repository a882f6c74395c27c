"""Checks the numbers, names, lists and switches of a call, and names the field that is wrong.

Protobuf would refuse them without the name of the field.
"""

from collections.abc import Collection
from numbers import Real
from operator import index
from typing import Any

MOST_FIGURE = (1 << 32) - 1

FIGURES = frozenset({"cached_tokens", "prompt_tokens", "output_tokens", "rank", "limit"})
SWITCHES = frozenset({"explain", "shadow", "disaggregated"})
OTHERS = frozenset({"prompt", "loads", "event"})
"""Arguments with a check of their own."""


def check_arguments(**given: Any) -> None:
    """Check the arguments of a call by what they are called; all that are not named here are names."""
    for name, value in given.items():
        if name in FIGURES:
            check_figure(name, value)
        elif name in SWITCHES:
            if value is not None and not isinstance(value, int):
                raise TypeError(f"{name} is of type {type(value).__name__}, not bool")
        elif name == "pods":
            if isinstance(value, str):
                # It would be a pod per letter.
                raise TypeError("pods is of type str; give a list of pods' ids")
            if value is not None:
                check_each("pods", str, value)
        elif name not in OTHERS:
            check_names(**{name: value})


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


def check_names(**names: object) -> None:
    """Raise TypeError for a name that is no text and not left out, ValueError for a lone surrogate."""
    for field, name in names.items():
        if name is None:
            continue
        if not isinstance(name, str):
            raise TypeError(f"{field} is of type {type(name).__name__}, not str")
        check_unicode(field, name)


def check_unicode(field: str, text: str) -> None:
    """Raise ValueError for a text with a lone surrogate, which no encoding has."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        said = f"{field} is not Unicode text: a lone surrogate at character {error.start}"
        raise ValueError(said) from None


def check_each(field: str, kind: type, values: object) -> None:
    """Raise TypeError for what is no list of values of a type."""
    if not isinstance(values, Collection):
        raise TypeError(f"{field} is of type {type(values).__name__}, not a list")
    for position, value in enumerate(values):
        if not isinstance(value, kind):
            said = f"{type(value).__name__}, not {kind.__name__}"
            raise TypeError(f"{field}[{position}] is of type {said}")


def check_numbers(kind: type = Real, **numbers: object) -> None:
    """Raise TypeError for what is no number of a kind (`numbers`)."""
    for field, number in numbers.items():
        if not isinstance(number, kind):
            said = f"{type(number).__name__}, not {'a number' if kind is Real else 'int'}"
            raise TypeError(f"{field} is of type {said}")
