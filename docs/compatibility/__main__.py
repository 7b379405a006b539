"""Writes docs/compatibility.md, or with --check compares it."""

from __future__ import annotations

import sys

from docs.compatibility.run import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
