"""The mistakes and doubts of a configuration file, and the variables that replace its keys.

WARMPATH_SERVER__LISTEN is server.listen: the names of the tables and of the key in capitals, with __
between them and _ for each dash. A key that is text takes the variable as it is; any other key takes
the TOML that would follow `=` in the file. Secrets stay in files, whose names are keys.
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_origin

import msgspec

from warmpath.router.config.form import Path, Problem, find_line, is_table, key_lines, plain, usable
from warmpath.router.config.schema import Config, PodSetSpec, PodSpec, Table

PREFIX = "WARMPATH_"
OTHERS = frozenset({
    "WARMPATH_LLMD_PROTO", "WARMPATH_OLDER", "WARMPATH_PROFILE", "WARMPATH_PUBLISH",
    "WARMPATH_REVISION", "WARMPATH_TEST", "WARMPATH_VLLM_FOLDER",
})  # fmt: skip
"""Variables of other parts of warmpath, of its images and of its tests."""
SERVICE = re.compile(r"WARMPATH_(\w+_)?(SERVICE_HOST|(SERVICE_)?PORT(_\w+)?)")
"""Variables that Kubernetes gives every container of a namespace in which a Service is called warmpath,
or warmpath- and more (docs/concepts/containers/container-environment of Kubernetes)."""


class Override(NamedTuple):
    """A variable of the environment that replaces a key."""

    variable: str
    at: Path
    value: Any
    problem: str
    """Why the variable cannot be used; empty if it can."""


def variable_of(at: Path) -> str:
    """Return the name of the variable that replaces a key."""
    return PREFIX + "__".join(str(part).replace("-", "_").upper() for part in at)


def overrides(environment: Mapping[str, str]) -> list[Override]:
    """Return the variables that begin with PREFIX; those that name no key have a `problem`."""
    known = {variable_of(at): (at, hint) for at, hint in _keys()}
    return [
        _override(name, environment[name], known)
        for name in sorted(environment)
        if name.startswith(PREFIX)
        and (name in known or not (name in OTHERS or SERVICE.fullmatch(name)))
    ]


def replaced(raw: dict[str, Any], found: Iterable[Override]) -> dict[str, Any]:
    """Return the content of a file with the keys that variables replace.

    A table that the file has in a wrong form stays, since that is the file's mistake.
    """
    for one in found:
        if not one.problem:
            raw = _with(raw, one.at, one.value)
    return raw


def _with(raw: dict[str, Any], at: Path, value: Any) -> dict[str, Any]:
    key = str(at[0])
    if len(at) == 1:
        return raw | {key: value}
    inner = raw.get(key, {})
    return raw | {key: _with(inner, at[1:], value)} if isinstance(inner, dict) else raw


def _override(name: str, text: str, known: Mapping[str, tuple[Path, Any]]) -> Override:
    if name not in known:
        near = difflib.get_close_matches(name, known, 1, 0.8)
        hint = f"did you mean {near[0]}?" if near else "docs/reference/config.md has every key"
        return Override(name, (), None, f"names no key; {hint}")
    at, hint = known[name]
    if (kind := plain(hint)) is str or get_origin(kind) is Literal:
        return Override(name, at, text, "")
    try:
        read = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        read = {}
    if read.keys() != {"value"}:
        return Override(name, at, None, "is not the TOML of one value")
    return Override(name, at, read["value"], "")


def _keys(table: type[Table] = Config, at: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield every key that is not a table, and its type. An array of tables is replaced as a whole."""
    for field in msgspec.structs.fields(table):
        here = (*at, field.encode_name)
        if is_table(field.type):
            yield from _keys(field.type, here)
        else:
            yield here, field.type


DECIDED_BY: dict[str, tuple[str, ...]] = {
    "server": ("clients", "limits"), "clients": ("server", "queue"), "index": ("server",),
    "pods": ("models",), "pod-sets": ("models",),
}  # fmt: skip
"""By table: the other tables whose values decide whether it has a mistake."""


class Mistake(NamedTuple):
    """One mistake, or a doubt that is placed like one."""

    line: int
    """The line of the file, from 1; 0 if the mistake is in a variable of the environment."""
    place: str
    """`FILE:LINE`, or the variable."""
    key: str
    problem: str

    def __str__(self) -> str:
        return ": ".join(filter(None, self[1:]))


class Mistakes:
    """The mistakes of a file with the content `raw`, whose text is `text`; `source` names it.

    `overrides` replace keys of it. Mistakes of form are found at once; others are added.
    """

    def __init__(
        self, raw: dict[str, Any], text: str, source: str, overrides: Sequence[Override] = ()
    ) -> None:
        self.source = source
        self.overrides = overrides
        self.config, form = usable(replaced(raw, overrides))
        """The configuration without its wrong values."""
        self._lines = key_lines(text)
        self._found = form.problems
        self._wrong = {_table(path) for path in form.wrong}

    def add(self, found: Iterable[Problem]) -> None:
        """Add mistakes, except those that may come of a value of wrong form, which is not known."""
        self._found += [one for one in found if not self._is_doubtful(one[0])]

    def spares(self, table: Path) -> bool:
        """Return whether no mistake was found in a table; for an array of tables, in any of them."""
        return all(_table(at) != table for at, _ in self._found)

    def in_order(self) -> list[Mistake]:
        """Return all mistakes: those of variables, then those of the file in its order."""
        unusable = [
            Mistake(0, one.variable, dotted(one.at) if one.at else "", one.problem)
            for one in self.overrides
            if one.problem
        ]
        found = [self.placed(at, why) for at, why in self._found]
        return sorted([*unusable, *found], key=lambda one: one.line)

    def placed(self, at: Path, problem: str) -> Mistake:
        """Return a problem with its line, or with the variable that replaces its key."""
        for one in self.overrides:
            if not one.problem and at[: len(one.at)] == one.at:
                return Mistake(0, one.variable, dotted(at), problem)
        line = find_line(self._lines, at)
        return Mistake(line, f"{self.source}:{line}", dotted(at), problem)

    def described(self) -> list[str]:
        """Return each mistake as `FILE:LINE: KEY: problem` or `VARIABLE: KEY: problem`."""
        return [str(one) for one in self.in_order()]

    def _is_doubtful(self, at: Path) -> bool:
        others = DECIDED_BY.get(str(at[0]), ())
        return _table(at) in self._wrong or any(wrong[0] in others for wrong in self._wrong)


def _table(at: Path) -> Path:
    return at[:2] if len(at) > 1 and isinstance(at[1], int) else at[:1]


def dotted(path: Path) -> str:
    """Return a path as one word, such as `pods[1].address`."""
    parts = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return parts.lstrip(".") or "file"


ONLY_IN_QUEUE = "hold-seconds", "passed-seconds", "wait-seconds"
"""Keys of [queue] that only the queue reads; engines may order by `prefill-times` without it."""
OF_WAITS = "max-requests", "max-bytes", "classes", "usual-class", "objectives", "shares"
"""Keys of [queue] that also count for picks that wait for a first pod."""


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
        reason = 'pick.queue is "off", and no pick waits for room'
        yield ("queue",), config.queue, ONLY_IN_QUEUE, reason
        if not config.queue.cold_start_seconds:
            yield ("queue",), config.queue, OF_WAITS, reason
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
