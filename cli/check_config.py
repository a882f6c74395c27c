"""`warmpath check-config`: checks whether the router would start with a configuration file."""

import argparse
import json
import os
import sys
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from warmpath.indexer.engines.table import ENGINES
from warmpath.prefixstore.chats.jinja_template import TemplateError, check_syntax
from warmpath.prefixstore.tokenizers.tokenizer import TokenizerUnavailableError
from warmpath.process.command_line import FINE, FOUND, USAGE, command_parser
from warmpath.router.config.files import Dated, dated
from warmpath.router.config.form import Path as KeyPath
from warmpath.router.config.form import Problem
from warmpath.router.config.mistakes import Mistakes, dotted, doubts
from warmpath.router.config.read import ConfigError, mistakes
from warmpath.router.config.schema import Config
from warmpath.router.diagnosis.blindness import without_events
from warmpath.router.pods.discover import CONFIGURATION
from warmpath.router.pods.look import Looked, look, sources
from warmpath.router.pods.twins import of_twin, twins
from warmpath.router.prompt.tokenizer_sources import local_source, template_of

MOST_NAMES = 8
"""Pods of one source that are named; --json has all."""


Warned = tuple[str, str]
"""A warning: its place, such as FILE:LINE, and its text."""


class Checked(NamedTuple):
    """The results of a check: mistakes, certificates, and (without mistakes) pods by their source."""

    found: Mistakes
    certificates: list[Dated]
    looked: list[Looked]
    without_template: Collection[int] = ()
    """The positions of models whose tokenizer on this machine comes without a chat template."""

    @property
    def mistakes(self) -> list[str]:
        """Every mistake on a line of its own, those of a file of pods last."""
        return [
            *self.found.described(),
            *(mistake for one in self.looked for mistake in one.mistakes),
        ]


def main(argv: Sequence[str] | None = None) -> int:
    """Check a configuration file and find its pods, without serving or asking a hub or an engine."""
    parser = command_parser(
        "check-config", main.__doc__, "warmpath check-config deploy/warmpath.toml"
    )
    parser.add_argument("file", type=Path, help="the TOML file")
    parser.add_argument(
        "--seconds", type=_seconds, default=5.0, help="longest time to look for pods; 5 by default"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args(argv)
    now = datetime.now(UTC)
    try:
        checked = _check(args.file, now, args.seconds)
    except ConfigError as error:
        if args.json:
            print(json.dumps({"file": str(args.file), "ok": False, "mistakes": error.problems}))
        else:
            print(error, file=sys.stderr)
        return USAGE if isinstance(error.__cause__, OSError) else FOUND
    warnings = _warnings(checked, now)
    fields = _fields(args.file, checked, warnings)
    if args.json:
        print(json.dumps(fields))
    else:
        _print(fields, warnings, checked.found.config)
    return FOUND if checked.mistakes else FINE


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= 600:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most 600")
    return value


def _check(file: Path, now: datetime, longest: float) -> Checked:
    folder = file.parent
    found = mistakes(file, os.environ)
    without_template: list[int] = []
    found.add([*_tokenizers(found, folder, without_template)])
    certificates = [*dated(found.config, folder)]
    found.add((one.at, problem) for one in certificates if (problem := one.problem(now)))
    if found.in_order():
        return Checked(found, certificates, [])
    looked = look(sources(found.config, folder), longest)
    return Checked(found, certificates, looked, without_template)


def _fields(file: Path, checked: Checked, warnings: Sequence[Warned]) -> dict[str, Any]:
    found = checked.found
    configured = Looked(CONFIGURATION, sorted(found.config.pods, key=lambda pod: pod.id))
    return {
        "file": str(file),
        "ok": not checked.mistakes,
        "mistakes": checked.mistakes,
        "warnings": [": ".join(warning) for warning in warnings],
        "replaced": [
            {"key": dotted(one.at), "variable": one.variable}
            for one in found.overrides
            if not one.problem
        ],
        "sources": [
            {"source": one.source, "pods": [pod.id for pod in one.pods], "problem": one.problem}
            for one in (configured, *checked.looked)
        ],
        "certificates": [
            {"key": dotted(one.at), "file": str(one.path), "ends": one.validity.ends.isoformat()}
            for one in checked.certificates
        ],
    }


def _print(fields: dict[str, Any], warnings: Sequence[Warned], config: Config) -> None:
    for line in fields["mistakes"]:
        print(line, file=sys.stderr)
    for place, text in warnings:
        print(f"{place}: warning: {text}", file=sys.stderr)
    if fields["mistakes"]:
        return
    file = fields["file"]
    for one in fields["replaced"]:
        print(f"{file}: {one['key']}: replaced by {one['variable']}")
    print(f"{file}: ok: models {len(config.models)}, pods {len(config.pods)}")
    for one in fields["sources"]:
        said = one["problem"] and f"cannot be asked from here: {one['problem']}"
        print(f"{file}: pods found by {one['source']}: {said or _names(one['pods'])}")
    for one in fields["certificates"]:
        print(f"{file}: {one['key']}: valid until {one['ends'][:10]}")


def _warnings(checked: Checked, now: datetime) -> list[Warned]:
    found = checked.found
    ending = [
        _at(found, one.at, warning)
        for one in checked.certificates
        if not one.problem(now) and (warning := one.warning(now))
    ]
    if found.in_order():
        # Its values may be mistaken, so that nothing can be said of what they mean.
        return ending
    settings = [_at(found, *doubt) for doubt in doubts(found.config)]
    return [*_blind(checked), *settings, *_doubtful_pods(checked), *ending]


def _blind(checked: Checked) -> Iterator[Warned]:
    """Yield a warning for each model about which picks know less than they could."""
    found = checked.found
    named = {pod.id: pod for one in checked.looked for pod in one.pods}
    named |= {pod.id: pod for pod in found.config.pods}
    for position, model in enumerate(found.config.models):
        pods, at = [pod for pod in named.values() if pod.model == model.name], ("models", position)
        local = local_source(model, Path())
        asks = not local and not model.tokenizer_urls
        if asks and pods and not any(ENGINES[pod.engine].tokenizes for pod in pods):
            doubt = (
                "none of its pods has /tokenize: picks for texts are blind; name a tokenizer or hub"
            )
            yield _at(found, (*at, "name"), doubt)
        if position in checked.without_template:
            doubt = (
                "has no chat template: picks for chats are blind; add one, or set tokenizer-urls"
            )
            yield _at(found, (*at, "tokenizer" if model.tokenizer else "hub"), doubt)
        if pods and not found.config.shared_index.url:
            if quiet := [pod for pod in pods if not (pod.events or pod.watch)]:
                yield _at(found, (*at, "name"), without_events(quiet, len(pods)))
            gaps = [pod.id for pod in pods if pod.events.startswith("tcp:") and not pod.replay]
            if gaps:
                doubt = (
                    f"{len(gaps)} of its {len(pods)} pods have no `replay`, such as {gaps[0]}: a gap in "
                    "its events stays open. Give the engine a replay_endpoint in --kv-events-config"
                )
                yield _at(found, (*at, "name"), doubt)


def _at(found: Mistakes, at: KeyPath, doubt: str) -> Warned:
    placed = found.placed(at, doubt)
    return placed.place, f"{placed.key}: {doubt}"


def _doubtful_pods(checked: Checked) -> Iterator[Warned]:
    found = checked.found
    named = [(CONFIGURATION, pod) for pod in found.config.pods]
    others = [(one.source, spec) for one in checked.looked for spec in one.pods]
    places: dict[str, str] = {}
    followed = []
    for source, spec in (*named, *others):
        first = places.setdefault(spec.id, source)
        if first == source:
            followed.append((source, spec))
            continue
        chosen = first if first == CONFIGURATION else "the first of them to answer"
        problem = f"{first} has it, too; it is followed as {chosen} describes it"
        yield source, f"pod {spec.id!r}: {problem}"
    numbers = {pod.id: number for number, pod in enumerate(found.config.pods)}
    for (source, spec), twin in twins(followed):
        doubt = of_twin(spec.address, twin)
        if source == CONFIGURATION:
            yield _at(found, ("pods", numbers[spec.id], "address"), doubt)
        else:
            yield source, f"pod {spec.id!r}: {doubt}"


def _names(pods: Sequence[str]) -> str:
    if not pods:
        return "0"
    more = f" and {len(pods) - MOST_NAMES} more" if len(pods) > MOST_NAMES else ""
    return f"{len(pods)}: {', '.join(pods[:MOST_NAMES])}{more}"


def _tokenizers(found: Mistakes, folder: Path, without_template: list[int]) -> Iterator[Problem]:
    """Yield the key of each local tokenizer or template that cannot be used, with the reason.

    Models with other mistakes are passed over. Those without a template go into `without_template`.
    """
    config = found.config
    local = [
        (position, model)
        for position, model in enumerate(config.models)
        if (model.tokenizer or model.hub.offline) and found.spares(("models", position))
    ]
    for position, model in local:
        source = local_source(model, folder)
        assert source is not None
        try:
            template = template_of(source.load(), model)
            if template is None and not model.tokenizer_urls:
                without_template.append(position)
            for text in template.texts() if template else ():
                check_syntax(text)
        except (TokenizerUnavailableError, TemplateError) as error:
            key = "tokenizer" if model.tokenizer else "hub"
            yield ("models", position, key), str(error)
