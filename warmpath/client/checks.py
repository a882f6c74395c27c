"""Checks the numbers, names, lists and switches of a call, and names the field that is wrong.

Protobuf would refuse them without the name of the field.
"""

from collections.abc import Collection, Iterable
from numbers import Real
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


def check_pods(pods: object) -> None:
    """Raise TypeError unless `pods` is a list of texts: a text alone would be a pod per letter."""
    if isinstance(pods, str):
        raise TypeError("pods is of type str; give a list of pods' ids")
    if pods is not None:
        check_each("pods", str, pods)


def check_each(field: str, kind: type, values: object) -> None:
    """Raise TypeError for what is no list of values of a type."""
    for position, value in enumerate(listed(field, values)):
        if not isinstance(value, kind):
            said = f"{type(value).__name__}, not {kind.__name__}"
            raise TypeError(f"{field}[{position}] is of type {said}")


def listed(field: str, values: object) -> Iterable[object]:
    """Return `values` if it is a list or another collection, else raise TypeError."""
    if not isinstance(values, Collection):
        raise TypeError(f"{field} is of type {type(values).__name__}, not a list")
    return values


def check_numbers(kind: type = Real, **numbers: object) -> None:
    """Raise TypeError for what is no number of a kind (`numbers`)."""
    for field, number in numbers.items():
        if not isinstance(number, kind):
            said = f"{type(number).__name__}, not {'a number' if kind is Real else 'int'}"
            raise TypeError(f"{field} is of type {said}")


def check_switches(**switches: object) -> None:
    """Raise TypeError for an on/off argument that is neither a bool nor None."""
    for field, switch in switches.items():
        if switch is not None and not isinstance(switch, int):
            raise TypeError(f"{field} is of type {type(switch).__name__}, not bool")
