"""Replays recorded traffic in real time through a front to simulated engines, with aiperf."""

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import aiohttp

from warmpath.cli.child import ChildError
from warmpath.lab.bench.gateways.front import Front, Pod, Stand, Start
from warmpath.lab.bench.gateways.peers import installed
from warmpath.lab.bench.gateways.traffic import Sent
from warmpath.lab.local.cluster import MODEL, Cluster, WorkerSettings
from warmpath.prefixstore.tokenizers.tokenizer import FolderTokenizer

PODS = 4
BLOCKS = 48_000
"""KV cache blocks of a pod, 16 tokens each."""
COUNTERS = re.compile(r"^vllm:prefix_cache_(queries|hits)_total\{.*\} (\S+)$", re.MULTILINE)
REPORT = "profile_export_aiperf.json"


class Replayed(NamedTuple):
    """The figures of one replay."""

    hit_ratio: float
    """Cached tokens over prompt tokens, as the engines counted them."""
    p50: float
    """Seconds to the first token."""
    p90: float
    failed: float


def schedule(requests: Sequence[Sent]) -> str:
    """Return the lines of a schedule for aiperf, in its form of Mooncake's traces."""
    lines, begun = [], set()
    for one in requests:
        fields: dict[str, object] = {"payload": one.body}
        if one.session in begun:
            fields["delay"] = one.at * 1000
        else:
            fields["timestamp"] = one.at * 1000
        if one.session:
            begun.add(one.session)
            fields["session_id"] = one.session
        lines.append(json.dumps(fields))
    return "\n".join(lines) + "\n"


async def replay(
    name: str, start: Start, requests: Sequence[Sent], tokenizer: Path, folder: Path
) -> Replayed:
    """Send the requests through a front of its own to engines with empty caches.

    `folder` is for files and logs. Raises ChildError if aiperf fails.
    """
    vocabulary = FolderTokenizer(tokenizer).vocab_size
    settings = WorkerSettings(
        BLOCKS, 16, speed=1.0, vocab_size=vocabulary, tokenizer=tokenizer, stream_interval=16
    )
    async with Cluster(settings, PODS, folder, policy="") as cluster:
        pods = [Pod(one.address, one.events, one.replay) for one in cluster.workers]
        async with start(name, Stand(pods, tokenizer, folder)) as front:
            before = await _counted(pods)
            report = await _aiperf(front, requests, tokenizer, folder)
            queries, hits = (
                late - early for late, early in zip(await _counted(pods), before, strict=True)
            )
    first, errors = report["time_to_first_token"], report.get("error_request_count") or {}
    return Replayed(
        hits / max(queries, 1), first["p50"] / 1000, first["p90"] / 1000, errors.get("avg", 0)
    )


async def _counted(pods: Sequence[Pod]) -> tuple[float, float]:
    """Return how many prompt tokens all engines were asked for, and how many of them they had cached."""
    total = {"queries": 0.0, "hits": 0.0}
    async with aiohttp.ClientSession() as http:
        for one in pods:
            async with http.get(f"http://{one.address}/metrics") as answer:
                for name, value in COUNTERS.findall(await answer.text()):
                    total[name] += float(value)
    return total["queries"], total["hits"]


async def _aiperf(
    front: Front, requests: Sequence[Sent], tokenizer: Path, folder: Path
) -> dict[str, dict[str, float]]:
    """Return aiperf's report."""
    file, out = folder / "schedule.jsonl", folder / "aiperf"
    file.write_text(schedule(requests), encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        str(installed("aiperf") / "aiperf"), "profile", f"--model={MODEL}",
        f"--url=http://{front.address}", "--endpoint-type=chat", "--streaming",
        f"--tokenizer={tokenizer}", "--use-server-token-count", f"--input-file={file}",
        "--custom-dataset-type=mooncake_trace", "--fixed-schedule", "--random-seed=1",
        f"--output-artifact-dir={out}", "--ui-type=none",
        "--no-server-metrics", "--no-gpu-telemetry",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    said, _ = await process.communicate()
    report = out / REPORT
    if process.returncode or not report.is_file():
        raise ChildError(f"aiperf failed with {process.returncode}: {said.decode()[-2000:]}")
    found: dict[str, dict[str, float]] = json.loads(report.read_bytes())
    return found
