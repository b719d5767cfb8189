"""``python -m veilmq``: the same as the command ``veilmq``."""

import sys

from veilmq.cli import main

if __name__ == "__main__":
    sys.exit(main())
