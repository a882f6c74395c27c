"""Limits of a policy's options."""

HIGHEST = 1e9
"""Far above what makes sense, and far below where costs stop being finite."""


def check_option(name: str, value: float, lowest: float = 0.0, highest: float = HIGHEST) -> None:
    """Raise ValueError, naming the option and its limits, if the value is out of them or no number."""
    if not lowest <= value <= highest:
        raise ValueError(f"option {name} is {value:g}: from {lowest:g} to {highest:g} is allowed")
