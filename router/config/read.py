"""Reads the configuration and names its first problem; `router.config.check` finds contradictions.

An error has the form `FILE:LINE: KEY: problem`, where the problem includes the allowed values; unknown
keys are refused in every table.
"""

import difflib
import mmap
import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from router.config.check import contradictions
from router.config.credentials import (
    CredentialsError,
    engine_credentials,
    publisher_credentials,
    server_tls,
)
from router.config.schema import (
    ClientSpec,
    Config,
    ModelSpec,
    PodSetSpec,
    PodSpec,
    Table,
)
from router.config.state_files import state_files
from router.config.token_file import TokenError, read_token
from router.config.toml_lines import find_line
from router.state_file import foreign


class ConfigError(Exception):
    """The configuration cannot be used."""


LISTS: dict[str, type[Table]] = {
    "clients": ClientSpec,
    "models": ModelSpec,
    "pods": PodSpec,
    "pod-sets": PodSetSpec,
}
"""The arrays of tables."""


def load(path: Path) -> Config:
    """Read a configuration file. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    config = parse(text, str(path))
    for at, problem in _lacking(config, path.parent):
        raise ConfigError(located(path, text, at, problem))
    return config


def located(path: Path, text: str, at: tuple[str | int, ...], problem: str) -> str:
    """Return the error for one key of a file whose content is `text`."""
    return f"{path}:{find_line(text, at)}: {_dotted(at)}: {problem}"


def _has_key(path: Path) -> bool:
    try:
        return len(path.read_text(encoding="ascii").split()) == 1
    except (OSError, UnicodeDecodeError):
        return False


def _lacking(config: Config, folder: Path) -> Iterator[tuple[tuple[str | int, ...], str]]:
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
        key_file = model.tokenizer_key_file
        if key_file and not _has_key(folder / key_file):
            problem = f"there is no key in {folder / key_file}: it must be one word of ASCII"
            yield ("models", position, "tokenizer-key-file"), problem
        if model.hub.token_file and not (folder / model.hub.token_file).is_file():
            problem = f"there is no file {folder / model.hub.token_file}"
            yield ("models", position, "hub", "token-file"), problem
    for key in ("password_file", "ca", "cert", "key"):
        name = getattr(config.shared_index, key)
        if name and not (folder / name).is_file():
            yield ("shared-index", key.replace("_", "-")), f"there is no file {folder / name}"
    for read in (
        lambda: publisher_credentials(config.watch, folder),
        lambda: engine_credentials(config.probe, folder),
        lambda: server_tls(config.server.tls, folder),
    ):
        try:
            read()
        except CredentialsError as error:
            yield error.at, error.problem
    yield from _tokens(config, folder)
    for name in state_files(config):
        if problem := foreign(folder / name):
            yield ("index", "state-file"), problem


def _tokens(config: Config, folder: Path) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield the place and the problem of each caller's token that cannot be used."""
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
    """Read a configuration; `source` names it in errors. Raises ConfigError."""
    return _checked(_toml(text, source), text, source)


def _toml(text: str, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ConfigError(f"{source}: is nested too deeply") from error
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+)", str(error))
        where = f"{source}:{line[1]}" if line else source
        raise ConfigError(f"{where}: {error}") from error


def _checked(raw: dict[str, Any], text: str, source: str) -> Config:
    """Return `raw`, read from `text`, as a configuration. Raises ConfigError for its first problem."""
    for path, problem in _problems(raw):
        raise ConfigError(f"{source}:{find_line(text, path)}: {_dotted(path)}: {problem}")
    return msgspec.convert(raw, Config)


def _dotted(path: tuple[str | int, ...]) -> str:
    parts = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return parts.lstrip(".") or "file"


def _problems(raw: dict[str, Any]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield the unknown keys, then the first value of a wrong form; without these, contradictions."""
    yield from _unknown(raw, Config, ())
    yield from _misformed(raw)
    yield from contradictions(msgspec.convert(raw, Config))


def _names(table: type[Table]) -> dict[str, str]:
    """Return the field's name for each of a table's keys."""
    return dict(zip(table.__struct_encode_fields__, table.__struct_fields__, strict=True))


def _unknown(
    raw: dict[str, Any], table: type[Table], at: tuple[str | int, ...]
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield the keys in `raw` that its tables do not have, each with a hint."""
    names = _names(table)
    hints = get_type_hints(table)
    for key, value in raw.items():
        if key not in names:
            near = difflib.get_close_matches(key, names, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(names)}"
            yield (*at, key), f"unknown key; {hint}"
            continue
        inner = hints[names[key]]
        if isinstance(inner, type) and issubclass(inner, Table):
            if isinstance(value, dict):
                yield from _unknown(value, inner, (*at, key))
        elif key in LISTS and not at and isinstance(value, list):
            element = LISTS[key]
            for position, item in enumerate(value):
                if isinstance(item, dict):
                    yield from _unknown(item, element, (*at, key, position))


def _misformed(raw: dict[str, Any]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield the first value that has the wrong type or is out of range."""
    try:
        msgspec.convert(raw, Config)
    except msgspec.ValidationError as error:
        problem, _, where = str(error).partition(" - at `$")
        path: tuple[str | int, ...] = tuple(
            int(part[1:-1]) if part.startswith("[") else part
            for part in re.findall(r"\[\d+\]|[^.\[\]`]+", where)
        )
        if problem.startswith("Invalid enum value"):
            problem += f"; one of {', '.join(_choices(path))}"
        missing = re.search(r"missing required field `([^`]+)`", problem)
        yield path, f"has no {missing[1]!r}" if missing else problem


def _choices(path: tuple[str | int, ...]) -> list[str]:
    """Return the allowed values of a key that takes one of several texts."""
    hint: Any = Config
    for part in path:
        if isinstance(part, int):
            continue
        hint = get_type_hints(hint)[_names(hint)[part]]
        if get_origin(hint) in {list, tuple}:
            hint = get_args(hint)[0]
    return [str(choice) for choice in get_args(hint)]


def parse_pods(raw: bytes, source: str, models: Sequence[ModelSpec]) -> list[PodSpec]:
    """Return the [[pods]] of a file with the content `raw`. Raises ConfigError."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source}: {error}") from error
    table = _toml(text, source)
    for key in table:
        if key != "pods":
            at = find_line(text, (key,))
            raise ConfigError(f"{source}:{at}: {key}: unknown key; known here: pods")
    whole = {"models": [msgspec.to_builtins(model) for model in models], **table}
    return _checked(whole, text, source).pods
