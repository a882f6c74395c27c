"""`warmpath demo`: compares cache-aware routing with simple policies on a local cluster."""

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from router.client.async_client import AsyncClient
from router.commands.local.cluster import MODEL, Cluster, ClusterError, WorkerSettings
from router.commands.local.measure import RunFigures, figures
from router.commands.local.policies import LeastLoad, Policy, RoundRobin, Warmpath
from router.commands.local.report import write_report
from router.commands.local.traffic_run import Prepared, TrafficRun, prepare, run_traffic
from router.commands.local.workload import VOCAB_SIZE, build, ceiling, read_trace
from router.commands.out_folder import claim

TRACE = Path(__file__).parent / "conversation-slice.jsonl.gz"
WARMPATH, QUEUED = "warmpath", "warmpath-queued"
POLICIES = ("round-robin", "least-load", WARMPATH, QUEUED)
TITLES = {QUEUED: "warmpath, queued"}
"""Names of policies in results, where they differ."""
PAGE, RESULTS = "report.html", "results.json"
"""The result files, in addition to logs."""
HEAD = ("policy", "hit ratio", "TTFT p50", "p90", "p99", "tokens saved", "imbalance")
LATE_SECONDS = 0.25
"""Delay of requests, in modelled seconds, above which the machine is called too busy."""


@dataclass(frozen=True, slots=True)
class DemoSetting:
    """The settings of one demo."""

    requests: list[Prepared]
    workers: WorkerSettings
    pods: int
    ceiling: float
    """Token hit ratio of one cache that never evicts."""
    span: float
    """Modelled seconds from the first arrival to the last."""
    out: Path
    kill: bool


def main(argv: Sequence[str] | None = None) -> int:
    """Run a local cluster and show the gain from cache-aware routing."""
    args = _parser().parse_args(argv)
    # A pipe has no width; 80 columns would cut the table.
    width = None if sys.stdout.isatty() else 110
    console = Console(stderr=args.json, width=width)
    try:
        setting = _setting(args)
        results = asyncio.run(_run_all(setting, args.policies.split(","), console))
    except (ClusterError, OSError, ValueError) as error:
        print(f"warmpath demo: {error}", file=sys.stderr)
        return 1
    except asyncio.CancelledError:
        return 128 + signal.SIGTERM
    _present(setting, results, console)
    if args.json:
        print((setting.out / RESULTS).read_text())
    failed = {name: result for name, result in results.items() if not result.served}
    for name, result in failed.items():
        print(f"warmpath demo: {name}: every request failed: {result.problem}", file=sys.stderr)
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="warmpath demo",
        description=main.__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--trace", type=Path, default=TRACE, help="a trace in Mooncake's format")
    add("--requests", type=int, default=0, help="number of requests, from the first; 0: all")
    add("--pods", type=int, default=4, help="workers")
    add("--blocks", type=int, default=24000, help="KV cache blocks of each worker, 32 tokens each")
    add(
        "--span",
        type=float,
        default=240.0,
        help="modelled seconds from the first arrival to the last",
    )
    add("--speed", type=float, default=12.0, help="modelled seconds in each real second")
    add(
        "--most-output", type=int, default=400, help="most tokens of an answer; longer ones are cut"
    )
    add("--policies", default=",".join(POLICIES), help="policies to compare, with commas")
    add("--kill-pod", action="store_true", help="kill a worker half-way and start it anew")
    add("--out", type=Path, default=Path("out/demo"), help="folder for the report and logs")
    add("--json", action="store_true", help="print the results as one JSON object")
    return parser


def _setting(args: argparse.Namespace) -> DemoSetting:
    unknown = set(args.policies.split(",")) - set(POLICIES)
    if unknown:
        raise ValueError(f"--policies: {', '.join(unknown)}; known: {', '.join(POLICIES)}")
    for name in ("pods", "span", "speed", "most_output"):
        if getattr(args, name) <= 0:
            raise ValueError(f"--{name.replace('_', '-')}: must be above 0")
    if args.requests < 0:
        raise ValueError("--requests: must be 0 or more")
    trace = read_trace(args.trace)[: args.requests or None]
    if not trace:
        raise ValueError(f"{args.trace}: no requests")
    logs = ["router.log", *(f"pod-{number + 1}.log" for number in range(args.pods))]
    claim(args.out, [PAGE, RESULTS, *logs])
    return DemoSetting(
        requests=prepare(build(trace, span=args.span, most_output=args.most_output)),
        workers=WorkerSettings(args.blocks, 32, args.speed, VOCAB_SIZE),
        pods=args.pods,
        ceiling=ceiling(trace),
        span=args.span,
        out=args.out,
        kill=args.kill_pod,
    )


async def _run_all(
    setting: DemoSetting, names: Sequence[str], console: Console
) -> dict[str, TrafficRun]:
    # `timeout` and supervisors send SIGTERM, which stops all processes like Ctrl-C.
    running = asyncio.current_task()
    assert running is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    results = {}
    columns = (TextColumn("{task.description:<12}"), BarColumn(), TextColumn("{task.fields[now]}"))
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        for name in names:
            task = progress.add_task(name, total=len(setting.requests), now="starting")

            def show(result: TrafficRun, task: object = task) -> None:
                prompt = sum(one.prompt_tokens for one in result.served)
                cached = sum(one.cached_tokens for one in result.served)
                ratio = cached / prompt if prompt else 0.0
                done = len(result.served) + result.failed
                progress.update(task, completed=done, now=f"{done} done, hit ratio {ratio:.2f}")  # type: ignore[arg-type]

            results[TITLES.get(name, name)] = await _run(setting, name, show)
    return results


async def _run(setting: DemoSetting, name: str, show: Callable[[TrafficRun], None]) -> TrafficRun:
    """Send the workload under one policy on a fresh cluster."""
    asks = name in (WARMPATH, QUEUED)
    async with Cluster(
        setting.workers, setting.pods, setting.out, router=asks, queue=name == QUEUED
    ) as cluster:
        addresses = [worker.address for worker in cluster.workers]
        if not asks:
            policy: Policy = (RoundRobin if name == "round-robin" else LeastLoad)(setting.pods)
            return await _run_traffic(setting, cluster, policy, addresses, show)
        async with AsyncClient(cluster.router_address, model=MODEL) as client:
            policy = Warmpath(client, [worker.id for worker in cluster.workers])
            return await _run_traffic(setting, cluster, policy, addresses, show)


async def _run_traffic(
    setting: DemoSetting,
    cluster: Cluster,
    policy: Policy,
    addresses: Sequence[str],
    show: Callable[[TrafficRun], None],
) -> TrafficRun:
    killing = asyncio.create_task(_kill_half_way(setting, cluster)) if setting.kill else None
    speed = setting.workers.speed
    try:
        return await run_traffic(setting.requests, policy, addresses, speed=speed, progress=show)
    finally:
        if killing is not None:
            await killing
        cluster.check()


async def _kill_half_way(setting: DemoSetting, cluster: Cluster) -> None:
    worker = cluster.workers[0]
    await asyncio.sleep(setting.span / setting.workers.speed / 2)
    worker.process.kill()
    await asyncio.sleep(2.0)
    await cluster.restart(worker)


def _present(setting: DemoSetting, results: dict[str, TrafficRun], console: Console) -> None:
    summed = {
        name: figures(
            result.served,
            pods=setting.pods,
            failed=result.failed,
            late=result.late,
            choices=result.choices,
        )
        for name, result in results.items()
    }
    rows = [HEAD, *(_row(name, one) for name, one in summed.items())]
    rows.append(("ceiling", f"{setting.ceiling:.3f}", "", "", "", "", ""))
    table = Table()
    for position, title in enumerate(HEAD):
        table.add_column(title, justify="right" if position else "left")
    for row in rows[1:]:
        table.add_row(*row)
    conclusion = _conclusion(summed)
    text = (
        f"{len(setting.requests)} requests of the public Mooncake conversation trace on "
        f"{setting.pods} simulated pods; times are modelled seconds (a 70B model on 4 GPUs a pod), "
        f"run {setting.workers.speed:g} times faster. The ceiling is one cache that never evicts."
    )
    report = setting.out / PAGE
    write_report(
        report,
        rows,
        {name: result.served for name, result in results.items()},
        pods=setting.pods,
        conclusion=conclusion,
        setting=text,
    )
    raw = {"ceiling": setting.ceiling, "policies": {k: asdict(v) for k, v in summed.items()}}
    (setting.out / RESULTS).write_text(json.dumps(raw), encoding="utf-8")
    console.print(text)
    console.print(table)
    console.print(conclusion)
    for name, one in summed.items():
        if one.failed:
            problem = results[name].problem
            console.print(f"{name}: {one.failed} requests failed, the last one: {problem}")
        if one.late_p99 > LATE_SECONDS:
            console.print(
                f"{name}: this machine was too busy: requests went out up to {one.late_p99:.2f} "
                "modelled seconds late, so the times are not exact (a lower --speed helps)"
            )
    if WARMPATH in summed:
        one = summed[WARMPATH]
        console.print(
            f"a choice of {WARMPATH} took {one.choice_p50_ms:.1f} ms (p99 {one.choice_p99_ms:.1f} ms), "
            "the client's own time on a busy machine included"
        )
    console.print(f"report: {report}")


def _row(name: str, one: RunFigures) -> tuple[str, ...]:
    return (
        name,
        f"{one.hit_ratio:.3f}",
        f"{one.ttft_p50:.2f} s",
        f"{one.ttft_p90:.2f} s",
        f"{one.ttft_p99:.2f} s",
        f"{one.saved_tokens:,}",
        f"{one.imbalance:.2f}",
    )


def _conclusion(summed: dict[str, RunFigures]) -> str:
    """Return what warmpath gains over the best of the other policies, and its queue over none."""
    ours = (WARMPATH, TITLES[QUEUED])
    others = {name: one for name, one in summed.items() if name not in ours}
    warm, queued = (summed.get(name) for name in ours)
    sentences = []
    if (first := warm or queued) and others:
        name, best = min(others.items(), key=lambda item: item[1].ttft_p90)
        sentences.append(
            f"warmpath found {first.hit_ratio:.0%} of all prompt tokens cached, {name} "
            f"{best.hit_ratio:.0%}; time to first token: {_gain(first, best)}."
        )
    if warm and queued:
        gain = _gain(queued, warm)
        sentences.append(f"With picks that wait in the queue, beside warmpath without: {gain}.")
    return " ".join(sentences) or "Nothing to compare: run warmpath and another policy."


def _gain(ours: RunFigures, theirs: RunFigures) -> str:
    """Return how much faster, or slower, first tokens came."""
    parts = []
    for label, our_time, their_time in (
        ("p50", ours.ttft_p50, theirs.ttft_p50),
        ("p90", ours.ttft_p90, theirs.ttft_p90),
        ("p99", ours.ttft_p99, theirs.ttft_p99),
    ):
        if our_time <= their_time:
            parts.append(f"{label} {their_time / max(our_time, 1e-9):.1f} x faster")
        else:
            parts.append(f"{label} {our_time / max(their_time, 1e-9):.1f} x SLOWER")
    return ", ".join(parts)
