"""Reads the configuration and names its mistakes; `router.config.check` finds contradictions.

An error has the form `FILE:LINE: KEY: problem`, where the problem includes the allowed values; unknown
keys are refused in every table.
"""

import mmap
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from warmpath.process.command_line import in_words
from warmpath.process.reread import TokenError, read_bytes, read_token
from warmpath.router.config.check import contradictions
from warmpath.router.config.files import EngineKeyError, read_engine_key, tls_problems
from warmpath.router.config.form import Problem, find_line, key_lines
from warmpath.router.config.mistakes import Mistakes, Override, dotted, overrides
from warmpath.router.config.schema import Config, ModelSpec, PodSpec
from warmpath.router.state_file import folder_problem, foreign


class ConfigError(Exception):
    """The configuration cannot be used; `problems` has one line for each mistake."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems

    @property
    def brief(self) -> str:
        more = len(self.problems) - 1
        return self.problems[0] + (f" (and {more} more)" if more else "")


MOST_BYTES = 16 << 20
"""Largest configuration, and largest file of pods: enough for fifty thousand."""
NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


def load(
    path: Path, environment: Mapping[str, str] = NO_VARIABLES, *, again: bool = False
) -> Config:
    """Read a configuration file; the arguments are as for `mistakes`. Raises ConfigError for any."""
    return without_mistakes(mistakes(path, environment, again=again))


def mistakes(
    path: Path, environment: Mapping[str, str] = NO_VARIABLES, *, again: bool = False
) -> Mistakes:
    """Return the mistakes of a configuration file, of variables, and of the files that both name.

    Raises ConfigError if it is not TOML, or, with the OSError as its cause, if it cannot be read. A file
    that is read `again` must be a regular one; at first a pipe will do.
    """
    try:
        raw = read_bytes(path, MOST_BYTES, of_any_kind=not again)
    except OSError as error:
        raise ConfigError(f"{path}: {in_words(error).removeprefix(f'{path}: ')}") from error
    text = _text(raw, str(path))
    found = _mistakes(_toml(text, str(path)), text, str(path), overrides(environment))
    found.add(_lacking(found.config, path.parent))
    return found


def _text(raw: bytes, source: str) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{source}:{line}: is not text in UTF-8") from error


def _mistakes(
    raw: dict[str, Any], text: str, source: str, replacing: Sequence[Override] = ()
) -> Mistakes:
    found = Mistakes(raw, text, source, replacing)
    found.add(contradictions(found.config))
    return found


def without_mistakes(found: Mistakes) -> Config:
    """Return the configuration. Raises ConfigError where it has mistakes."""
    if problems := found.described():
        raise ConfigError(*problems)
    return found.config


def check(config: Config) -> None:
    """Raise ConfigError if a configuration that was put together of two contradicts itself."""
    if problems := [f"{dotted(at)}: {problem}" for at, problem in contradictions(config)]:
        raise ConfigError(*problems)


def _secret_problem(path: Path) -> str:
    try:
        lines = read_bytes(path).decode().strip().splitlines()
    except FileNotFoundError:
        return f"there is no file {path}"
    except (OSError, UnicodeDecodeError) as error:
        reason = in_words(error) if isinstance(error, OSError) else "is not UTF-8"
        return f"{path} cannot be read: {reason.removeprefix(f'{path}: ')}"
    if not lines:
        return f"{path} is empty"
    return f"{path} has {len(lines)} lines; it must have one" if len(lines) > 1 else ""


def _lacking(config: Config, folder: Path) -> Iterator[Problem]:
    """Yield a problem for memory, files and folders that the configuration needs and are not there."""
    try:
        mmap.mmap(-1, config.index.max_bytes).close()
    except OSError as error:
        problem = f"is {config.index.max_bytes}, more than this machine has: {error.strerror}"
        yield ("index", "max-bytes"), problem
    for position, model in enumerate(config.models):
        if model.tokenizer and not (folder / model.tokenizer / "tokenizer.json").is_file():
            problem = f"{folder / model.tokenizer} has no tokenizer.json"
            yield ("models", position, "tokenizer"), problem
        if model.hub.token_file and (problem := _secret_problem(folder / model.hub.token_file)):
            yield ("models", position, "hub", "token-file"), problem
    password = config.shared_index.password_file
    if password and (problem := _secret_problem(folder / password)):
        yield ("shared-index", "password-file"), problem
    yield from tls_problems(config, folder)
    yield from _tokens(config, folder)
    yield from _engine_keys(config, folder)
    name = config.index.state_file
    if name and (problem := foreign(folder / name)):
        yield ("index", "state-file"), problem
    decisions = config.pick.decision_log
    if decisions not in {"", "-"} and (problem := folder_problem((folder / decisions).parent)):
        yield ("pick", "decision-log"), problem


def _engine_keys(config: Config, folder: Path) -> Iterator[Problem]:
    files = {
        ("models", "tokenizer-key-file"): [one.tokenizer_key_file for one in config.models],
        ("pods", "key-file"): [one.key_file for one in config.pods],
        ("pod-sets", "key-file"): [one.key_file for one in config.pod_sets],
    }
    for (table, key), names in files.items():
        for position, name in enumerate(names):
            try:
                if name:
                    read_engine_key(folder / name)
            except EngineKeyError as error:
                yield (table, position, key), str(error)


def _tokens(config: Config, folder: Path) -> Iterator[Problem]:
    taken: dict[str, str] = {}
    for position, client in enumerate(config.clients):
        if not client.token_file:
            continue
        at = ("clients", position, "token-file")
        try:
            token = read_token(folder / client.token_file)
        except TokenError as error:
            yield at, str(error)
            continue
        if token in taken:
            yield at, f"has the same token as client {taken[token]!r}"
        taken[token] = client.name


def parse(text: str, source: str) -> Config:
    """Read the text of a configuration; `source` names it in errors. Raises ConfigError."""
    return without_mistakes(_mistakes(_toml(text, source), text, source))


def _toml(text: str, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ConfigError(f"{source}: is nested too deeply") from error
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"at line (\d+)", str(error))
        # A text that is cut off has no line in the error: the last one is meant.
        line = found[1] if found else text.rstrip().count("\n") + 1
        raise ConfigError(f"{source}:{line}: {error}") from error


def parse_pods(raw: bytes, source: str, models: Sequence[ModelSpec]) -> list[PodSpec]:
    """Return the [[pods]] of a file with the content `raw`. Raises ConfigError."""
    text = _text(raw, source)
    table = _toml(text, source)
    for key in table:
        if key != "pods":
            at = find_line(key_lines(text), (key,))
            raise ConfigError(f"{source}:{at}: {key}: unknown key; known here: pods")
    whole = {"models": [msgspec.to_builtins(model) for model in models], **table}
    return without_mistakes(_mistakes(whole, text, source)).pods
