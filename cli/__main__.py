"""Lets `python -m warmpath.cli` run the `warmpath` command line."""

import sys

from warmpath.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
