"""`python -m zinc` is the same as the command `zinc`."""

import sys

from zinc.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
