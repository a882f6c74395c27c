"""`warmpath check-config`: whether the router would start with a file."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from router.read_config import ConfigError, load


def main(argv: Sequence[str] | None = None) -> int:
    """Check a configuration file without serving."""
    parser = argparse.ArgumentParser(prog="warmpath check-config", description=main.__doc__)
    parser.add_argument("file", type=Path)
    args = parser.parse_args(argv)
    try:
        config = load(args.file)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{args.file}: ok: models {len(config.models)}, pods {len(config.pods)}")
    return 0
