"""How long the simulator's state machines run: 500 examples each in CI, fewer at a desk."""

from typing import Any

from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine

from tests.examples import examples

EXAMPLES = examples(500)

LONG = settings(max_examples=EXAMPLES, stateful_step_count=25)


def long_test(machine: type[RuleBasedStateMachine], settings: settings = LONG) -> Any:
    """Return the test of a state machine, to be named `TestThing`."""
    case = machine.TestCase
    case.settings = settings
    return case
