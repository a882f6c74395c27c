"""`warmpath score` and `warmpath pods`, and what all commands share that ask a running router."""

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from warmpath.cli.console import new_console, new_table, trust_words
from warmpath.cli.tls_options import OptionError, add_tls, check_tls, without_answer
from warmpath.client.calls import Prompt
from warmpath.client.credentials import EXAMPLE, SettingError, problem_of_target
from warmpath.client.failure import CallError
from warmpath.client.sync_client import Client
from warmpath.indexer.keys.key import unpack_tokens
from warmpath.process.command_line import FINE, FOUND, NO_ANSWER, USAGE, command_parser, in_words
from warmpath.process.tls import TlsPaths
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.pods.table import WELL

Reply = TypeVar("Reply", bound=Message)

ROUTER = EXAMPLE
MOST_TOKENS = 400
"""The most tokens of an explained score that are shown; --json has all."""
OPTIONS = {
    "target": "--router", "tls.ca": "--tls-ca", "tls.cert": "--tls-cert", "token_file": "--token-file",
}  # fmt: skip
"""By an argument of `Client`, the option that gives it."""


def score_main(argv: Sequence[str] | None = None) -> int:
    """Show which pods are warm for a prompt."""
    parser = router_parser("score", score_main.__doc__, "--model demo 'Once upon a time'")
    add_prompt(parser)
    parser.add_argument(
        "--strategy", default="", help="how blocks become a score; longest-prefix by default"
    )
    parser.add_argument(
        "--explain",
        action="store_true",
        help="show the text, its tokens, how much of them was stored, and the time of each step",
    )
    args = parser.parse_args(argv)
    return call_with_prompt(
        "score",
        args,
        lambda client, prompt: client.score(
            prompt, pods=args.pod, strategy=args.strategy, explain=args.explain
        ),
        _scores,
    )


def pods_main(argv: Sequence[str] | None = None) -> int:
    """List the pods that the router knows, with the trust in each.

    The exit status is 1 where it knows none of the model that --model names.
    """
    parser = router_parser("pods", pods_main.__doc__, "--router 127.0.0.1:7400")
    parser.add_argument("--model", default="", help="only the pods of this model")
    args = parser.parse_args(argv)
    reply = answer(args, lambda client: client.pods(args.model))
    if isinstance(reply, int):
        return reply
    is_unknown = bool(args.model) and not reply.pods
    if is_unknown:
        print(f"warmpath: {args.model}: the router knows no pod of it", file=sys.stderr)
    if args.json or not is_unknown:
        _print(args, reply, _pods_table)
    return FOUND if is_unknown else FINE


def router_parser(name: str, summary: str | None, example: str) -> argparse.ArgumentParser:
    """Return a command's parser with the options of every command that asks a router.

    Its help begins with `summary`, and ends with an example: the command's name and `example`.
    """
    parser = command_parser(name, summary, f"warmpath {name} {example}")
    parser.add_argument("--router", type=router_address, default=ROUTER, help="host:port")
    parser.add_argument(
        "--timeout", type=seconds, default=10.0, help="seconds that the answer may take"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_channel(parser)
    return parser


def add_channel(parser: argparse.ArgumentParser) -> None:
    """Add the options of the connection to a router: those of TLS, and --token-file."""
    group = parser.add_argument_group("connection")
    add_tls(group, authority="PEM of the router's authority; a plain connection without it")
    group.add_argument("--token-file", type=Path, help="file with the token to send")


def open_client(args: argparse.Namespace) -> Client:
    """Return the client that the options describe. Raises OptionError."""
    check_tls(args)
    tls = None if args.tls_ca is None else TlsPaths(args.tls_ca, args.tls_cert, args.tls_key)
    try:
        return Client(args.router, tls=tls, token_file=args.token_file, timeout=args.timeout)
    except SettingError as error:
        raise OptionError(f"{OPTIONS[error.argument]}: {error.problem}") from error


def seconds(text: str) -> float:
    """Return an option's value as seconds; argparse refuses all but finite numbers above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return value


def router_address(text: str) -> str:
    """Return an option's value, a router's address (host:port); argparse refuses any other text."""
    if problem := problem_of_target(text):
        raise argparse.ArgumentTypeError(problem)
    return text


def add_prompt(parser: argparse.ArgumentParser) -> None:
    """Add the options for a prompt and for the pods that the answer is to be about."""
    parser.add_argument("prompt", nargs="?", help="the text; - reads it from standard input")
    parser.add_argument("--file", type=Path, help="read the text from a file")
    parser.add_argument("--chat-file", type=Path, help="an OpenAI chat body (JSON)")
    parser.add_argument("--completions-file", type=Path, help="an OpenAI completions body (JSON)")
    parser.add_argument("--token-ids-file", type=Path, help="token ids, as JSON or in words")
    parser.add_argument("--model", default="", help="the model's or adapter's name")
    parser.add_argument("--lora", default="", help="the adapter's name, beside a base model's")
    parser.add_argument("--cache-salt", default="", help="the cache salt")
    parser.add_argument("--pod", action="append", default=[], help="only this pod; may be repeated")


def prompt_of(args: argparse.Namespace) -> Prompt:
    """Return the options' prompt. Raises OSError, and ValueError unless there is one valid prompt."""
    named = partial(Prompt, model=args.model, lora=args.lora, cache_salt=args.cache_salt)
    sources = ("prompt", "file", "chat_file", "completions_file", "token_ids_file")
    given = [name for name in sources if getattr(args, name) is not None]
    if len(given) != 1:
        options = "PROMPT, --file, --chat-file, --completions-file, --token-ids-file"
        raise ValueError(f"give exactly one of {options}")
    source = given[0]
    if source == "prompt":
        return named(text=sys.stdin.read() if args.prompt == "-" else args.prompt)
    if source == "file":
        return named(text=_text(args.file, "--file"))
    if source == "chat_file":
        return named(chat_body=args.chat_file.read_bytes())
    if source == "completions_file":
        return named(completions_body=args.completions_file.read_bytes())
    ids = _token_ids(_text(args.token_ids_file, "--token-ids-file"))
    if not all(type(token) is int and 0 <= token < 1 << 32 for token in ids):
        raise ValueError("--token-ids-file: token ids must be integers from 0 to 4294967295")
    return named(ids)


def _text(path: Path, option: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{option}: {path} is not UTF-8 text: {error}") from error


def _token_ids(text: str) -> list[Any]:
    try:
        if text.lstrip().startswith("["):
            found = json.loads(text)
            return found if isinstance(found, list) else [found]
        return [int(word) for word in text.split()]
    except (ValueError, RecursionError) as error:
        first = next((word for word in text.split() if not word.isdecimal()), "")
        raise ValueError(
            f"--token-ids-file: neither a JSON array nor integers: {first[:40]!r}"
        ) from error


def call(
    args: argparse.Namespace,
    ask: Callable[[Client], Reply],
    show: Callable[[Reply], RenderableType],
) -> int:
    """Make one call by `ask`, and print its answer by `show` or as JSON; return the exit status."""
    reply = answer(args, ask)
    if isinstance(reply, int):
        return reply
    _print(args, reply, show)
    return FINE


def call_with_prompt(
    command: str,
    args: argparse.Namespace,
    ask: Callable[[Client, Prompt], Reply],
    show: Callable[[Reply], RenderableType],
) -> int:
    """Make one call with the prompt that the options give, as `call` does."""
    try:
        prompt = prompt_of(args)
    except (OSError, ValueError) as error:
        print(f"warmpath {command}: {in_words(error)}", file=sys.stderr)
        return USAGE
    return call(args, lambda client: ask(client, prompt), show)


def _print(args: argparse.Namespace, reply: Reply, show: Callable[[Reply], RenderableType]) -> None:
    if args.json:
        print(json.dumps(fields_of(reply)))
    else:
        print_rich(show(reply))


def answer(args: argparse.Namespace, ask: Callable[[Client], Reply]) -> Reply | int:
    """Make one call by `ask`; return its answer. If it fails, print why and return the exit status."""
    try:
        with open_client(args) as client:
            return ask(client)
    except OptionError as error:
        print(f"warmpath: {error}", file=sys.stderr)
        return USAGE
    except CallError as error:
        return failed(error, args)


def fields_of(message: Message) -> dict[str, Any]:
    """Return a message as a dict for JSON, with the field names of the proto file."""
    return MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def print_rich(shown: RenderableType) -> None:
    """Print a table or text for a terminal or a pipe."""
    new_console(piped_width=160).print(shown)


def failed(error: CallError, args: argparse.Namespace) -> int:
    """Print why a call failed; return the exit status."""
    print(f"warmpath: {problem_of_call(error, args)}", file=sys.stderr)
    return NO_ANSWER if _is_unanswered(error) else FOUND


def problem_of_call(error: CallError, args: argparse.Namespace) -> str:
    """Return why a call failed, and what to do about it."""
    router = args.router
    said = without_answer(error.code.name, error.message, args, asked=router)
    if not said or not _is_unanswered(error):
        no_model = error.message == "prompt.model: is missing"
        return f"{error}; name the model with --model" if no_model else str(error)
    return f"no router answers at {router}: {said}"


def _is_unanswered(error: CallError) -> bool:
    """Return whether no router has answered: its own refusals have a reason."""
    codes = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "UNIMPLEMENTED")
    return error.reason is None and error.code.name in codes


def _scores(response: pb.ScoreResponse) -> RenderableType:
    is_explained = response.HasField("explanation")
    above = _explained(response.explanation) if is_explained else []
    return Group(*above, _score_table(response))


def _explained(explanation: pb.Explanation) -> list[RenderableType]:
    ids = unpack_tokens(explanation.token_ids_packed)
    parts: list[RenderableType] = []
    if explanation.text:
        stored = explanation.stored_chars
        parts += [
            Text(f"text: {len(explanation.text)} characters, the first {stored} known", "bold"),
            # A Text, since Rich would take square brackets of a prompt for markup.
            Text(explanation.text[:stored], "green") + Text(explanation.text[stored:]),
        ]
    shown = " ".join(map(str, ids[:MOST_TOKENS]))
    if len(ids) > MOST_TOKENS:
        shown += f" … ({len(ids) - MOST_TOKENS} more)"
    steps = new_table("step, >ms", box=None, header_style="bold")
    for step in explanation.steps:
        steps.add_row(step.name, f"{step.seconds * 1e3:.3f}")
    tokens = f"tokens: {len(ids)}, {explanation.stored_tokens} of them from the prefix store"
    keys = (
        f"block keys: {explanation.keys}, {explanation.stored_keys} of them from the prefix store"
    )
    return [*parts, Text(tokens, "bold"), Text(shown), Text(keys, "bold"), steps]


def _score_table(response: pb.ScoreResponse) -> Table:
    columns = "pod, >rank, >score, >matched, >of prompt, tiers, trust"
    table = new_table(columns, title=f"{response.prompt_tokens} tokens", title_justify="left")
    for one in sorted(response.scores, key=lambda one: -one.score):
        share = one.matched_tokens / response.prompt_tokens if response.prompt_tokens else 0.0
        table.add_row(
            one.pod, str(one.rank), f"{one.score:g}", str(one.matched_tokens), f"{share:.0%}",
            " ".join(f"{tier.tier} {tier.tokens}" for tier in one.tiers) or "-",
            trust_words(one.trust, "" if one.ready else " (not ready)"),
        )  # fmt: skip
    return table


def _pods_table(response: pb.ListPodsResponse) -> Table:
    table = new_table(
        "pod, address, model, ready, >rank, >blocks, >holds / of, >block size, trust",
        caption=(
            "ready: with no events connected a pod is picked by the prompts that were sent to it\n"
            "blocks: different blocks that the router knows there, by tier\n"
            "holds / of: blocks of the GPU's cache that are taken, every copy counted, and its size"
        ),
        caption_justify="left",
    )
    for pod in response.pods:
        unready = "no events" if pod.status in ("", WELL) else f"no: {pod.status}"
        for rank in pod.ranks:
            blocks = " ".join(f"{tier.tier} {tier.blocks}" for tier in rank.tiers)
            table.add_row(
                pod.id, pod.address, pod.model, "yes" if pod.ready else Text(unready),
                str(rank.rank), blocks or "0",
                f"{rank.copies if rank.HasField('copies') else '?'} / {rank.capacity or '?'}",
                str(rank.block_size or "?"), trust_words(rank.trust),
            )  # fmt: skip
    return table
