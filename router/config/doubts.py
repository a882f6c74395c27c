"""Settings that are allowed and hardly meant; `check-config` and the router's log warn of them."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from warmpath.router.config.form import Path, Problem
from warmpath.router.config.schema import Config, PodSetSpec, PodSpec, Table

ONLY_IN_QUEUE = (
    "hold-seconds", "passed-seconds", "wait-seconds", "max-requests", "max-bytes", "classes",
    "usual-class", "shares",
)  # fmt: skip
"""Keys of [queue] that only the queue reads; engines may order by `prefill-times` without it."""


def doubts(config: Config) -> Iterator[Problem]:
    """Yield each doubtful setting: the path of a key, and why."""
    limits, shared = config.limits, config.shared_index
    if (most := limits.max_in_flight_bytes) < limits.largest_message:
        doubt = (
            f"is {most}, less than one of the largest messages ({limits.largest_message} bytes, by "
            "limits.max-prompt-bytes and limits.max-prompt-tokens): messages are read one at a time"
        )
        yield ("limits", "max-in-flight-bytes"), doubt
    if shared.url and shared.mode == "replica" and shared.stale_seconds < shared.poll_seconds:
        doubt = (
            f"is {shared.stale_seconds:g}, less than poll-seconds ({shared.poll_seconds:g}): the first "
            "reading of Redis that fails makes every pod stale"
        )
        yield ("shared-index", "stale-seconds"), doubt
    # Keys whose values differ from the default and have no effect, because of other keys.
    for at, table, keys, reason in _idle(config):
        usual = {one.encode_name: one for one in msgspec.structs.fields(table)}
        for key in keys:
            if getattr(table, usual[key].name) != _default(usual[key]):
                yield (*at, key), f"has no effect: {reason}"


def _default(field: Any) -> Any:
    made = field.default_factory
    return field.default if made is msgspec.NODEFAULT else made()


Idle = tuple[Path, Table, Sequence[str], str]
"""The path of a table, the table, those of its keys that nothing reads, and why."""


def _idle(config: Config) -> Iterator[Idle]:
    at, shared = ("shared-index",), config.shared_index
    if not shared.url:
        keys = ("prefix", "deadline-seconds", "poll-seconds", "stale-seconds")
        yield at, shared, keys, "it goes with url, which is missing"
    elif shared.mode == "shared":
        reason = 'mode is "shared", in which Redis is asked for each prompt'
        yield at, shared, ("poll-seconds",), reason
    else:
        reason = 'mode is "replica", in which no answer waits for Redis'
        yield at, shared, ("deadline-seconds",), reason
    if "coverage" not in config.server.ready:
        yield ("server",), config.server, ("ready-coverage",), 'ready does not name "coverage"'
    pick = config.pick
    if pick.queue == "off":
        reason = 'pick.queue is "off", and no pick waits'
        yield ("queue",), config.queue, ONLY_IN_QUEUE, reason
        for position, client in enumerate(config.clients):
            yield ("clients", position), client, ("classes",), reason
    if not pick.decision_log:
        yield ("pick",), pick, ("decision-log-share",), "decision-log is empty"
    for position, model in enumerate(config.models):
        if not model.tokenizer_urls:
            reason = "it is sent to tokenizer-urls alone, and there are none"
            yield ("models", position), model, ("tokenizer-key-file",), reason
    if not config.probe.interval_seconds:
        yield ("probe",), config.probe, ("timeout-seconds",), "interval-seconds is 0: no probes"
    for position, pod in enumerate(config.pods):
        yield from _of_engine(("pods", position), pod)
    for position, pods in enumerate(config.pod_sets):
        yield from _of_engine(("pod-sets", position), pods)
        if pods.watch_port:
            ports = {"events-port": pods.events_port, "replay-port": pods.replay_port}
            given = [key for key, port in ports.items() if port]
            reason = "watch-port is given: pods are followed through their publishers"
            yield ("pod-sets", position), pods, given, reason
        elif not pods.events_port and pods.replay_port:
            reason = "events-port is 0: engines' events are not followed"
            yield ("pod-sets", position), pods, ("replay-port",), reason


def _of_engine(at: Path, pod: PodSpec | PodSetSpec) -> Iterator[Idle]:
    if pod.engine != "trtllm":
        yield at, pod, ("block-size",), f"the events of {pod.engine} have the block size"
    if pod.engine != "vllm":
        reason = f"only vLLM's events leave out what a drafter needs; this is {pod.engine}"
        yield at, pod, ("eagle",), reason
