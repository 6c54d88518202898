"""``python -m mpiring`` is the command ``mpiring``."""

import sys

from mpiring.cli import main

if __name__ == "__main__":
    sys.exit(main())
