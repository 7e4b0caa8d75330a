"""`python -m benchmarks.peers`."""

from __future__ import annotations

import sys

from benchmarks.peers import main

if __name__ == "__main__":
    sys.exit(main())
