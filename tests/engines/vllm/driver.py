"""Sends requests, each after its prediction, and compares the two."""

import asyncio
import itertools
import json
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.engines.vllm.fleet import SECONDS, Fleet, Rank
from tests.engines.vllm.rendering import Renderings, prompt_of
from tests.engines.vllm.results import Difference, Outcome, rule_of
from warmpath.indexer.keys.key import Keyspace, chain
from warmpath.lab.verify.cause import BlockNames, EventKeys
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb

DEFAULTS: dict[str, Any] = {"model": "tiny", "max_tokens": 3, "temperature": 0}
NUMBERS = itertools.count(1)
BLOCK = 32
"""Tokens of a block."""


@dataclass(frozen=True)
class Answer:
    served: Rank
    usage: dict[str, Any]
    choices: list[dict[str, Any]]
    header: int | None
    """The tokens that the picker predicted to be cached; None for a request sent straight."""

    @property
    def cached(self) -> int:
        return int(self.usage["prompt_tokens_details"]["cached_tokens"] or 0)

    @property
    def text(self) -> str:
        choice = self.choices[0]
        return str(choice["message"]["content"] if "message" in choice else choice["text"])


@dataclass
class Driver:
    """Asks the routers, then an engine, one request at a time."""

    fleet: Fleet
    http: aiohttp.ClientSession
    renderings: Renderings = field(default_factory=Renderings)
    outcomes: list[Outcome] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    async def ask(
        self,
        body: dict[str, Any],
        to: Rank | None = None,
        *,
        session: str = "",
        exact: bool = True,
        settled: bool = True,
    ) -> Answer:
        """Predict, send and compare; `to` None: through Envoy, to the pod that the router picks.

        Where it is `settled`, both routers have followed every batch and say the same before it is sent;
        with `exact`, both also call their view exact. Otherwise the word of the picker's router counts.
        """
        body = DEFAULTS | body
        if settled:
            await self.fleet.followed()
            await self.renderings.compare(body, self.fleet, self.http)
            scores = await self._predicted(body, to, exact=exact)
        else:
            scores = await self._said(body, "replica")
        before = {rank: len(one.batches) for rank, one in self.fleet.batches.items()}
        answer = await self.send(body, to, session)
        score = scores[answer.served]
        rule, because = "", ""
        if score.matched_tokens != answer.cached:
            rule, because = await self._explain(body, score, answer, before[answer.served])
        self.outcomes.append(
            Outcome(
                path_of(body), "straight" if to else "gateway", *answer.served,
                f"{pb.Trust.Level.Name(score.trust.level)} {score.trust.reason}".strip(),
                answer.usage["prompt_tokens"], score.matched_tokens, answer.cached, answer.header, rule,
                because,
            )
        )  # fmt: skip
        return answer

    async def _predicted(
        self, body: dict[str, Any], to: Rank | None, *, exact: bool
    ) -> dict[Rank, pb.PodScore]:
        """Return what both routers say of each rank, once they say the same."""
        said: list[dict[Rank, pb.PodScore]] = []
        try:
            async with asyncio.timeout(SECONDS):
                while True:
                    said = await asyncio.gather(
                        *(self._said(body, mode) for mode in self.fleet.clients)
                    )
                    ranks = [to] if to else self.fleet.running
                    if all(_agree([one[rank] for one in said], exact=exact) for rank in ranks):
                        return said[0]
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise TimeoutError(f"the routers differ, or are not exact: {said}") from None

    async def _said(self, body: dict[str, Any], mode: str) -> dict[Rank, pb.PodScore]:
        response = await self.fleet.clients[mode].score(prompt_of(body))
        return {(one.pod, one.rank): one for one in response.scores}

    async def get(self, url: str) -> dict[str, Any]:
        return await self._asked("GET", url)

    async def post(self, url: str) -> dict[str, Any]:
        return await self._asked("POST", url)

    async def _asked(self, method: str, url: str) -> dict[str, Any]:
        async with self.http.request(method, url) as response:
            assert response.status == 200, await response.text()
            text = await response.text()
            return dict(json.loads(text)) if text else {}

    async def send(self, body: dict[str, Any], to: Rank | None = None, session: str = "") -> Answer:
        """Send a request without a prediction."""
        body = DEFAULTS | body
        name = f"asked-{next(NUMBERS)}"
        headers = {"x-request-id": name, "Content-Type": "application/json"}
        if to:
            base = self.fleet.engines[to[0]].base
            headers["x-data-parallel-rank"] = str(to[1])
        else:
            base = self.fleet.gateway_base
            headers |= {"x-warmpath-session": session} if session else {}
        url = f"{base}{path_of(body)}"
        async with self.http.post(url, data=json.dumps(body), headers=headers) as response:
            answer = await response.json()
            assert response.status == 200, (body, answer)
        if to:
            return Answer(to, answer["usage"], answer["choices"], None)
        decisions = (await self.fleet.clients["replica"].decisions(limit=4)).decisions
        [picked] = [one for one in decisions if one.request_id == name]
        assert picked.pod == response.headers["x-warmpath-pod"]
        cached = int(response.headers["x-warmpath-cached-tokens"])
        return Answer((picked.pod, picked.rank), answer["usage"], answer["choices"], cached)

    async def _explain(
        self, body: dict[str, Any], score: pb.PodScore, answer: Answer, since: int
    ) -> tuple[str, str]:
        """Return the name of the rule that holds for a difference, and what it was judged by."""
        await self.fleet.followed()
        published = self.fleet.batches[answer.served]
        explained = await self.fleet.clients["replica"].score(prompt_of(body), explain=True)
        tokens = explained.explanation.token_ids_packed
        lora = body["model"] if body["model"] != "tiny" else ""
        root = Keyspace("tiny", BLOCK, lora, body.get("cache_salt", "")).root()
        keys = chain(root, tokens, BLOCK)[: (explained.prompt_tokens - 1) // BLOCK]
        names = BlockNames("tiny")
        said = [names.learn(events) for events in published.events(0)]
        difference = Difference(
            body, score.trust, keys, score.matched_tokens // BLOCK, answer.cached // BLOCK,
            _before_its_own(said[since:], set(keys)),
        )  # fmt: skip
        rule = rule_of(difference)
        kinds = [[(kind, len(named)) for kind, named in batch] for batch in said[since:]]
        return (rule.name if rule else ""), f"{len(keys)} blocks; batches {kinds}; {body}"


def _before_its_own(batches: list[list[EventKeys]], keys: set[int]) -> list[EventKeys]:
    """Return the events of the first batch up to the first store of one of the keys."""
    before: list[EventKeys] = []
    for kind, named in batches[0] if batches else []:
        if kind == "stored" and named & keys:
            break
        before.append((kind, named))
    return before


def _agree(scores: list[pb.PodScore], *, exact: bool) -> bool:
    same = len({(one.matched_tokens, one.trust.level) for one in scores}) == 1
    return same and (not exact or scores[0].trust.level == pb.Trust.EXACT)


def path_of(body: dict[str, Any]) -> str:
    return "/v1/chat/completions" if "messages" in body else "/v1/completions"
