"""`python -m tandemmq` is the `tandem` command."""

from __future__ import annotations

import sys

from tandemmq.command.cli import main

if __name__ == "__main__":
    sys.exit(main())
