"""How long the simulator's state machines run: 2,000 examples each in CI, fewer at a desk."""

import os

from hypothesis import settings

EXAMPLES = int(os.environ.get("WARMPATH_EXAMPLES") or (2000 if os.environ.get("CI") else 50))

LONG = settings(max_examples=EXAMPLES, stateful_step_count=25)
"""Settings of a state machine: `TestThing = Machine.TestCase; TestThing.settings = LONG`."""
