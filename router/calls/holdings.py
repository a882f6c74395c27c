"""Finds the blocks of a prompt that each pod holds, for callers of other indexers (llm-d, Dynamo)."""

from dataclasses import dataclass

from msgspec.structs import replace

from warmpath.process.loop import turn_after
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.match.match import Matches, Scorer
from warmpath.router.pods.namespaces import asked
from warmpath.router.pods.table import Pod, PodTable
from warmpath.router.prompt.limits import TimeLeft
from warmpath.router.prompt.reader import PromptReader
from warmpath.router.prompt.token_prompt import TokenPrompt
from warmpath.scorer.strategies import longest_prefix


@dataclass(frozen=True, slots=True)
class HeldBlocks:
    """The blocks of a prompt that the pods of its model hold."""

    prompt: TokenPrompt
    pods: list[Pod]
    matches: Matches
    """All full blocks of the prompt count, the one that ends with its last token too. Beliefs that the
    router's own picks made are in it, and are no part of `Match.known_tokens` and `Match.held`."""


class Holdings:
    """Reads a prompt and finds which pods hold its first blocks (for the calls of llm-d and Dynamo)."""

    def __init__(self, reader: PromptReader, scorer: Scorer, pods: PodTable) -> None:
        self._reader = reader
        self._scorer = scorer
        self._pods = pods

    async def find(self, message: pb.Prompt, timeout: float, patience: float) -> HeldBlocks:
        """Return what each pod holds; waits are bounded, and errors are raised, as by Score."""
        left = TimeLeft(patience)
        read = await self._reader.read(message, timeout)
        pods = self._pods.of_model(read.prompt.model)
        prompt = replace(read.apart(pod.engine for pod in pods), is_whole=True)
        asked(prompt, pods)
        ranks = [rank for pod in pods for rank in pod.ranks]
        await self._scorer.refresh(prompt, ranks, left.seconds())
        matches = self._scorer.matches(prompt, ranks, longest_prefix)
        await turn_after(len(ranks))
        return HeldBlocks(prompt, pods, matches)
