"""The reasons for which the queue holds no request."""

from enum import StrEnum


class StepBack(StrEnum):
    """A reason; its value is the label of a metric, and docs/queue.md explains it."""

    ENDING = "ending"
    OTHER_ROUTERS = "other-routers"
    FEW_FIRST_TOKENS = "few-first-tokens"
    UNREPORTED_FIRST_TOKENS = "unreported-first-tokens"
    LATE_FIRST_TOKENS = "late-first-tokens"
    OTHER_TRAFFIC = "other-traffic"
