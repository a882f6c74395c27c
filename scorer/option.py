"""Checks the values of a policy's options."""

HIGHEST = 1e9
"""Far above any sensible value, and small enough that costs remain finite."""


def check_option(name: str, value: float, lowest: float = 0.0, highest: float = HIGHEST) -> None:
    """Raise ValueError with the option's name and limits if the value is outside them or NaN."""
    if not lowest <= value <= highest:
        raise ValueError(f"option {name} is {value:g}: from {lowest:g} to {highest:g} is allowed")
