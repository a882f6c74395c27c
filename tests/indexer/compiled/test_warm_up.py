"""All that a request needs is compiled before the first request."""

import json
import subprocess
import sys

# In a process of its own: in ours other tests have compiled more than `warm_up` does.
PROGRAM = """
import json
import sys
from array import array

from msgspec.structs import replace
from numba.core.dispatcher import Dispatcher

from warmpath.indexer.compiled.array_index import ArrayIndex
from warmpath.indexer.compiled.warm_up import warm_up
from warmpath.indexer.keys.key import Chain
from warmpath.indexer.embedded import packed_keys
from warmpath.proto.pb.warmpath.wire.v1 import score_request_pb2 as wire
from warmpath.router.prompt.parse import listed_ids


def kinds():
    named = [
        (f"{name}.{key}", value)
        for name, module in list(sys.modules.items())
        if name.startswith("warmpath.indexer.compiled")
        for key, value in vars(module).items()
        if isinstance(value, Dispatcher)
    ]
    return {name: len(value.signatures) for name, value in named}


index = ArrayIndex(1 << 20)
warm_up(index)
before = kinds()
chain = Chain(7, array("I", range(64)).tobytes(), 16, 4)
index.match(chain, leading=True)
index.match(replace(chain, made=packed_keys(chain)), leading=True)
index.match(replace(chain, extras=[None, b"x", None, None]))
listed_ids(wire.TokenIds(ids=[bytes([1, 2, 3])]), "ids")
print(json.dumps([before, kinds()]))
"""


def test_no_form_of_a_prompt_makes_the_first_caller_wait_for_a_compiler() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True)
    before, after = json.loads(ran.stdout)
    assert before
    assert after == before
