"""`python -m tests.clients.cli.recorded --write`: record what all commands of the tables leave behind.

Without `--write`, list what differs.
"""

from __future__ import annotations

import sys

from tests.clients.cli.recorded.replay import RECORDED, TABLES, outcomes
from tests.clients.rest.recorded.__main__ import record

if __name__ == "__main__":
    sys.exit(record("tests.clients.cli.recorded", RECORDED, TABLES, outcomes))
