"""The kinds of engines, by name; a new one is added here."""

from warmpath.indexer.engines.sglang import SGLANG
from warmpath.indexer.engines.trtllm import TRTLLM
from warmpath.indexer.engines.vllm import VLLM

ENGINES = {one.name: one for one in (VLLM, SGLANG, TRTLLM)}
