"""`python -m router` is `warmpath`."""

import sys

from router.cli import main

if __name__ == "__main__":
    sys.exit(main())
