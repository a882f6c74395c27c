"""How long the simulator's state machines run: 500 examples each in CI, fewer at a desk."""

from hypothesis import settings

from tests.examples import examples

EXAMPLES = examples(500)

LONG = settings(max_examples=EXAMPLES, stateful_step_count=25)
"""Settings of a state machine: `TestThing = Machine.TestCase; TestThing.settings = LONG`."""
