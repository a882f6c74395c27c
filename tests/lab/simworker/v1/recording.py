"""A real engine's recording (`tests/recorded/`), and our engine given the same requests.

Requests that were sent one at a time leave nothing open: each runs alone until it ends. For those that
were sent at once, the recording says when the client sent them, not before which step each of
them reached the scheduler. `recorded_arrivals.json` has one order that explains all published batches
(`find_arrivals.py` of commit bcd2599f searched for it): for each phase, or request with several samples,
the requests that come before each step.
"""

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.recordings import VLLM_TRACE
from warmpath.lab.simworker.engine import Generation
from warmpath.lab.simworker.events.from_v1 import from_v1
from warmpath.lab.simworker.events.vllm import VllmDialect
from warmpath.lab.simworker.v1.assemble import KVGroup, build_engine, kv_cache_config
from warmpath.lab.simworker.v1.requests.request import Request
from warmpath.lab.simworker.v1.scheduling.scheduler_config import SchedulerConfig

ARRIVALS = Path(__file__).with_name("recorded_arrivals.json")

Line = dict[str, Any]

Arrivals = list[list[str]]
"""The requests that come before each step."""


@dataclass
class Run:
    """The lines recorded between an engine's start and its end."""

    int_hashes: bool
    lines: list[Line] = field(default_factory=list)

    @property
    def batches(self) -> list[Line]:
        """The published batches, in order."""
        return sorted(
            (one for one in self.lines if one["kind"] == "events"), key=lambda one: one["seq"]
        )

    def phases(self) -> Iterator[tuple[str, list[Line]]]:
        """Yield each phase's name and its lines, without batches."""
        name, lines = "", []
        for line in self.lines:
            if line["kind"] == "phase":
                yield name, lines
                name, lines = line["name"], []
            elif line["kind"] != "events":
                lines.append(line)
        yield name, lines


def read_runs() -> list[Run]:
    runs: list[Run] = []
    with gzip.open(VLLM_TRACE, "rt") as file:
        for line in map(json.loads, file):
            if line["kind"] == "engine" and line["action"] == "start":
                runs.append(Run(line["env"].get("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES") != "0"))
            elif runs:
                runs[-1].lines.append(line)
    return runs


def samples(line: Line) -> list[str]:
    """Return the scheduler's request ids for one request line: one for each sample."""
    if line["kind"] == "aborted":
        return [f"aborted-{line['t']}"]
    return [f"{line['id']}/{number}" for number in range(len(line["outputs"]))]


class Answers:
    """Samples the recorded tokens; those of aborted requests are unknown, so zeros."""

    def __init__(self) -> None:
        self.tokens: dict[str, list[int]] = {}

    def __call__(self, request: Request, count: int) -> list[int]:
        done = request.num_output_tokens
        return self.tokens[request.request_id][done : done + count]


class Driven:
    """Our engine, with the recorded one's flags, and what it published."""

    def __init__(self, run: Run) -> None:
        self.answers = Answers()
        self.engine = build_engine(
            kv_cache_config(96, [KVGroup(32)]),
            SchedulerConfig(max_model_len=1024, max_num_seqs=8, max_num_batched_tokens=1024),
            sample=self.answers,
            hash_algorithm="sha256_cbor",
            use_int_block_hashes=False,
        )
        self.dialect = VllmDialect(byte_hashes=not run.int_hashes)
        self.sent: dict[str, Generation] = {}
        self.times = [one["decoded"]["ts"] for one in run.batches]
        self.published: list[str] = []
        """Payloads in hex, stamped with the recorded times."""

    def submit(self, line: Line, name: str) -> None:
        """Send one sample of a request."""
        body = line["body"]
        if line["kind"] == "aborted":
            prompt, tokens = body["prompt"], [0] * body["max_tokens"]
        else:
            output = line["outputs"][int(name.rpartition("/")[2])]
            prompt, tokens = line["prompt_token_ids"], output["token_ids"]
        self.answers.tokens[name] = tokens
        adapted = body.get("model") == "tuned"
        self.sent[name] = Generation(
            name,
            prompt,
            len(tokens),
            pass_over,
            cache_salt=body.get("cache_salt", ""),
            lora_name="tuned" if adapted else "",
            lora_path="tiny-lora" if adapted else "",
            skip_reading_prefix_cache="prompt_logprobs" in body,
            kv_cache_report_mode=body.get("vllm_xargs", {}).get(
                "kv_cache_report_mode", "incremental"
            ),
            session_id=body.get("session_id", ""),
        )
        self.engine.submit(self.sent[name])

    def step(self) -> None:
        """Take a step."""
        self.engine.begin_step()
        events = self.engine.end_step()
        self.engine.check()
        if events:
            number = len(self.published)
            time = self.times[number] if number < len(self.times) else 0.0
            self.published.append(self.dialect.batch(time, from_v1(events, lambda _: 1), 0).hex())

    def run(self) -> None:
        """Step until no request is left."""
        while self.engine.busy:
            self.step()

    def send(self, lines: list[Line], arrivals: Arrivals) -> None:
        """Send requests, each before its step in `arrivals`; run until all have ended."""
        by_name = {name: line for line in lines for name in samples(line)}
        for names in arrivals:
            for name in names:
                self.submit(by_name[name], name)
            self.step()
        self.run()

    def abort(self, line: Line) -> None:
        """Send a request and abort it after a step; the exact time does not matter later."""
        (name,) = samples(line)
        self.submit(line, name)
        self.step()
        self.engine.abort(name)

    def phase(self, name: str, lines: list[Line], arrivals: dict[str, Arrivals]) -> Iterator[Line]:
        """Do what a phase's lines say; yield each line that has an outcome, once it is done."""
        requests = [one for one in lines if one["kind"] == "request" and one["status"] == 200]
        if name in arrivals:
            self.send(requests, arrivals[name])
            yield from (one for one in lines if one["kind"] in {"request", "metrics"})
            return
        rest = sorted(lines, key=lambda one: one.get("t_start", one["t"]))
        while rest:
            line = rest.pop(0)
            if line["kind"] == "request" and line["status"] == 200:
                if rest and rest[0]["kind"] == "admin" and rest[0]["t"] < line["t"]:
                    self.submit(line, *samples(line))
                    self.step()
                    yield rest.pop(0)
                    self.run()
                else:
                    self.send([line], arrivals.get(str(line["id"]), [samples(line)]))
                yield line
            elif line["kind"] == "aborted":
                self.abort(line)
            elif line["kind"] in {"metrics", "admin"}:
                yield line


def pass_over(tokens: list[int], last: bool) -> None:
    """Ignore an answer, which is known."""
