"""`warmpath check-config`: checks whether the router would start with a configuration file."""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from prefixstore.chats.jinja_template import TemplateError, check_syntax
from prefixstore.tokenizers.tokenizer import TokenizerUnavailableError
from router.config.credentials import engine_credentials
from router.config.read import ConfigError, load, located
from router.config.schema import Config
from router.prompt.tokenising.tokenizer_sources import Sources, template_of


def main(argv: Sequence[str] | None = None) -> int:
    """Check a configuration file without serving, and without asking a hub or an engine."""
    parser = argparse.ArgumentParser(prog="warmpath check-config", description=main.__doc__)
    parser.add_argument("file", type=Path)
    args = parser.parse_args(argv)
    try:
        config = load(args.file)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    problems = list(_tokenizers(config, args.file.parent))
    if problems:
        text = args.file.read_text(encoding="utf-8-sig")
        for at, problem in problems:
            print(located(args.file, text, at, problem), file=sys.stderr)
        return 1
    print(f"{args.file}: ok: models {len(config.models)}, pods {len(config.pods)}")
    return 0


def _tokenizers(config: Config, folder: Path) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield the key of each local tokenizer or template that cannot be used, with the reason."""
    engines = engine_credentials(config.probe, folder)
    with Sources(folder, config, time.monotonic, engines) as sources:
        for position, model in enumerate(config.models):
            if not (model.tokenizer or model.hub.offline):
                continue
            source = sources.local(model)
            assert source is not None
            try:
                template = template_of(source.load(), model)
                for text in template.texts() if template else ():
                    check_syntax(text)
            except (TokenizerUnavailableError, TemplateError) as error:
                key = "tokenizer" if model.tokenizer else "hub"
                yield ("models", position, key), str(error)
