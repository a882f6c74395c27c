"""`warmpath demo`: compares cache-aware routing with simple policies on a local cluster."""

import asyncio
import json
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from random import Random

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from warmpath.cli.child import ChildError
from warmpath.cli.console import new_console
from warmpath.client.async_client import AsyncClient
from warmpath.lab.demo.setting import PAGE, RESULTS, DemoSetting, demo_setting, new_parser
from warmpath.lab.demo.traffic_run import run_traffic
from warmpath.lab.demo.verdict import SPEEDS, TRIAL_SECONDS, conclusions, in_time, slower, warnings
from warmpath.lab.local.choices import Router
from warmpath.lab.local.cluster import MODEL, Cluster
from warmpath.lab.local.measure import RunFigures, TrafficRun, figures
from warmpath.lab.simulate.closed_loop import ClosedLoop
from warmpath.process.command_line import FOUND, USAGE, in_words
from warmpath.scorer.policy import DEFAULT

HEAD = (
    "policy", "session p50", "p90", "TTFT p50", "p90", "chats p50", "p90", "hit ratio",
    "imbalance",
)  # fmt: skip
SEED = "none: the traffic is recorded, and the router breaks ties at random"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a local cluster and show the gain from cache-aware routing."""
    given = sys.argv[1:] if argv is None else argv
    args = new_parser(main.__doc__).parse_args(given)
    # What is missing is said before the run, and not where only help is asked for.
    from warmpath.lab.local.report import provenance  # noqa: PLC0415  matplotlib is an extra

    console = new_console(piped_width=110, stderr=args.json)
    try:
        setting = demo_setting(args)
    except (OSError, ValueError) as error:
        print(f"warmpath demo: {in_words(error)}", file=sys.stderr)
        return USAGE
    try:
        setting, results = asyncio.run(run_all(setting, args.policies.split(","), console))
    except (ChildError, OSError) as error:
        print(f"warmpath demo: {in_words(error)}", file=sys.stderr)
        return FOUND
    except asyncio.CancelledError:
        return 128 + signal.SIGTERM
    options = {**vars(args), "speed": _speed_words(setting)}
    made = provenance(["warmpath", "demo", *given], options) | {"seed": SEED}
    _present(setting, results, made, console)
    if args.json:
        print((setting.out / RESULTS).read_text())
    failed = {name: result for name, result in results.items() if not result.served}
    for name, result in failed.items():
        print(f"warmpath demo: {name}: every request failed: {result.problem}", file=sys.stderr)
    return 1 if failed else 0


def _speed_words(setting: DemoSetting) -> str:
    speed = f"{setting.workers.speed:g}"
    if not setting.fits or setting.workers.speed >= SPEEDS[0]:
        return speed
    return f"{speed}, lowered from {SPEEDS[0]:g}: choices of pods came late on this machine"


async def run_all(
    setting: DemoSetting, names: Sequence[str], console: Console
) -> tuple[DemoSetting, dict[str, TrafficRun]]:
    """Run the policies at one speed; return the setting with that speed, and each policy's run."""
    # `timeout` and supervisors send SIGTERM, which stops all processes like Ctrl-C.
    running = asyncio.current_task()
    assert running is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    if setting.fits:
        console.print("seeing how fast this machine is")
        trial = replace(setting, until=TRIAL_SECONDS, kill=False)
        setting = _fitted(setting, await _run(trial, DEFAULT, lambda _: None), console)
    while True:
        results, fitted = {}, setting
        with _progress(console) as progress:
            for name in names:
                show = _shown(progress, name, len(setting.requests))
                results[name] = run = await _run(setting, name, show)
                fitted = _fitted(setting, run, console)
                if fitted is not setting:
                    break
        if fitted is setting:
            return setting, results
        setting = fitted


def _fitted(setting: DemoSetting, run: TrafficRun, console: Console) -> DemoSetting:
    """Return the setting, with a lower speed if choices came late in its run."""
    speed, delay = setting.workers.speed, run.delay
    if not setting.fits or in_time(delay) or speed <= SPEEDS[-1]:
        return setting
    lower = slower(speed, delay)
    console.print(
        f"choices came {delay:.2f} modelled seconds late at {speed:g} times the speed: "
        f"beginning anew at {lower:g} times"
    )
    return replace(setting, workers=replace(setting.workers, speed=lower))


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description:<16}"), BarColumn(), TextColumn("{task.fields[now]}"))
    return Progress(*columns, TimeElapsedColumn(), console=console)


def _shown(progress: Progress, name: str, total: int) -> Callable[[TrafficRun], None]:
    """Return a function that shows the progress of a run."""
    task = progress.add_task(name, total=total, now="starting")

    def show(run: TrafficRun) -> None:
        now = f"{run.done} done, hit ratio {run.hit_ratio:.2f}"
        progress.update(task, completed=run.done, now=now)

    return show


async def _run(setting: DemoSetting, name: str, show: Callable[[TrafficRun], None]) -> TrafficRun:
    """Send the traffic under one policy of the router on a fresh cluster."""
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(
            Cluster(setting.workers, setting.pods, setting.out, policy=name)
        )
        client = AsyncClient(cluster.router_address, model=MODEL)
        await stack.enter_async_context(client)
        killing = asyncio.create_task(_kill_half_way(setting, cluster)) if setting.kill else None
        try:
            return await run_traffic(
                ClosedLoop(setting.sessions, rng=Random(0)),
                setting.requests,
                Router(client, [worker.id for worker in cluster.workers]),
                [worker.address for worker in cluster.workers],
                speed=setting.workers.speed,
                progress=show,
                until=setting.until,
            )
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


def _present(
    setting: DemoSetting, results: dict[str, TrafficRun], made: Mapping[str, str], console: Console
) -> None:
    from warmpath.lab.local.report import Story, write_report  # noqa: PLC0415  matplotlib is an extra

    summed = {name: figures(result, setting.pods) for name, result in results.items()}
    alone = [f"{seconds:.0f} s" for seconds in setting.alone]
    bound = "bound", *alone, *[""] * 4, f"{setting.ceiling:.3f}", ""
    rows = [HEAD, *(_row(name, one) for name, one in summed.items()), bound]
    table = Table()
    for position, title in enumerate(HEAD):
        table.add_column(title, justify="right" if position else "left")
    for row in rows[1:]:
        table.add_row(*row)
    told = conclusions(summed)
    doubts = warnings(summed, {name: one.problem for name, one in results.items()})
    text = (
        f"{setting.traffic} on {setting.pods} simulated pods behind one router; times are modelled "
        f"seconds (a 70B model on 4 GPUs a pod), run {setting.workers.speed:g} times faster. TTFT is "
        "the time to the first token, of agents' requests and of chats'. Bound: each session alone on "
        "idle pods, and one cache that never evicts. Imbalance is the busiest pod's computed prompt "
        "tokens over the pods' mean."
    )
    report = setting.out / PAGE
    write_report(
        report,
        rows,
        {name: result.served for name, result in results.items()},
        pods=setting.pods,
        story=Story(
            conclusions=told,
            warnings=doubts,
            setting=text,
            made=made,
            ceiling=setting.ceiling,
            killed=setting.span / 2 if setting.kill else None,
        ),
    )
    raw = {
        "speed": setting.workers.speed,
        "ceiling": setting.ceiling,
        "alone": setting.alone,
        "warnings": doubts,
        "policies": {k: asdict(v) for k, v in summed.items()},
    }
    (setting.out / RESULTS).write_text(json.dumps(raw), encoding="utf-8")
    console.print(text)
    console.print(table)
    for sentence in [*told, *doubts]:
        console.print(sentence)
    if one := summed.get(DEFAULT):
        console.print(
            f"a choice of {DEFAULT} took {one.choice_p50_ms:.1f} ms of this machine's time "
            f"(p99 {one.choice_p99_ms:.1f} ms), the client's own time on a busy machine included"
        )
    console.print(f"report: {report}")


def _row(name: str, one: RunFigures) -> tuple[str, ...]:
    about = "" if in_time(one.delay) else "~"
    first = one.agents_ttft, one.chats_ttft
    return (
        name,
        *(f"{about}{time:.0f} s" for time in (one.sessions.p50, one.sessions.p90)),
        *(f"{about}{time:.2f} s" for of in first for time in (of.p50, of.p90)),
        f"{one.hit_ratio:.3f}",
        f"{one.imbalance:.2f}",
    )
