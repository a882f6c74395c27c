"""Find when recorded requests reached the scheduler: `PYTHONPATH=. python tests/lab/simworker/v1/find_arrivals.py`.

Writes `recorded_arrivals.json`. Searches, step by step and depth first, which of the requests sent so far
reach the scheduler before the step; the published batches must be the recorded ones, byte by byte, and a
request must end about when its client had the answer. The recorded times only guide the search: the
batches alone prove its result. Takes half a minute.
"""

import json
from copy import deepcopy
from dataclasses import dataclass

from tests.lab.simworker.v1.recording import (
    ARRIVALS,
    Arrivals,
    Driven,
    Line,
    Run,
    read_runs,
    samples,
)

STEP = 0.0047
"""About the seconds of a step without events."""

LAG = 0.008
"""About the seconds from a client's sending to the scheduler."""

SAMPLES: dict[str, Arrivals] = {"113": [["113/0"], ["113/1", "113/2"]]}
"""Of the request with three samples, the first came a step before the other two."""


@dataclass
class Search:
    """The requests of one phase, when batches were published, and their bytes in hex."""

    lines: dict[str, Line]
    times: list[float]
    payloads: list[str]

    def ready(self, pending: list[str], driven: Driven, now: float) -> list[str]:
        """Return the requests that may come: sent by now, and before any open request was answered."""
        running = driven.engine.scheduler.requests
        answered = min(self.lines[name]["t"] for name in (*pending, *running))
        sent = (name for name in pending if self.lines[name]["t_start"] <= now + STEP)
        return [name for name in sent if self.lines[name]["t_start"] < answered]

    def plausible(self, driven: Driven, ended: set[str], now: float) -> bool:
        """Return whether requests end about when their clients got the answers."""
        late = any(self.lines[name]["t"] < now - 0.001 for name in driven.engine.scheduler.requests)
        return not late and all(-0.012 < self.lines[name]["t"] - now < 0.03 for name in ended)

    def find(self, driven: Driven, now: float, pending: list[str]) -> Arrivals | None:
        """Return the arrivals from here on; None if none explains the published batches."""
        if not pending:
            driven.run()
            return [] if driven.published == self.payloads else None
        ready = self.ready(pending, driven, now)
        if not ready and not driven.engine.busy:
            ready = pending[:1]
        ripe = sum(self.lines[name]["t_start"] + LAG <= now for name in ready)
        for count in sorted(range(len(ready) + 1), key=lambda count: (abs(count - ripe), -count)):
            if not count and not driven.engine.busy:
                continue
            found = self.step(deepcopy(driven), now, ready[:count], pending)
            if found is not None:
                return [ready[:count], *found]
        return None

    def step(
        self, driven: Driven, now: float, come: list[str], pending: list[str]
    ) -> Arrivals | None:
        """Submit requests, take a step, and search on if that fits the recording; else return None."""
        for name in come:
            driven.submit(self.lines[name], name)
        running = set(driven.engine.scheduler.requests)
        done = len(driven.published)
        driven.step()
        if len(driven.published) > done:
            if self.payloads[done : done + 1] != driven.published[-1:]:
                return None
            done += 1
            now = self.times[done - 1]
            if not self.plausible(driven, running - driven.engine.scheduler.requests.keys(), now):
                return None
        else:
            now += STEP
        if done < len(self.times) and now > self.times[done] + 0.025:
            return None
        return self.find(driven, now, [name for name in pending if name not in come])


def search(run: Run, driven: Driven, lines: list[Line]) -> Arrivals:
    requests = sorted(
        (one for one in lines if one["kind"] == "request"), key=lambda one: one["t_start"]
    )
    # The recorder's clock and the engine's: a batch is received after it was made.
    offset = min(one["t"] - one["decoded"]["ts"] for one in run.batches)
    end = max(one["t"] for one in requests)
    times = [one["decoded"]["ts"] + offset for one in run.batches]
    times = [time for time in times if time < end]
    payloads = [one["payload_hex"] for one in run.batches[: len(times)]]
    names = {name: one for one in requests for name in samples(one)}
    now = requests[0]["t_start"] + LAG
    found = Search(names, times, payloads).find(deepcopy(driven), now, list(names))
    if found is None:
        raise SystemExit("no order of arrivals explains the published batches")
    return found


def main() -> None:
    run = read_runs()[0]
    driven = Driven(run)
    arrivals = dict(SAMPLES)
    for name, lines in run.phases():
        if name in {"concurrent", "preemptions"}:
            arrivals[name] = search(run, driven, lines)
        for _ in driven.phase(name, lines, arrivals):
            pass
        if name == "preemptions":
            break
    lines = (f"{json.dumps(name)}: {json.dumps(steps)}" for name, steps in sorted(arrivals.items()))
    ARRIVALS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
