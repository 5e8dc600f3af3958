"""Runs the thinker stage: `python -m services.thinker --help`."""

from __future__ import annotations

import sys

from antiphon.runtime.server.main import main
from services.loading import load_role

if __name__ == "__main__":
    sys.exit(main("thinker", load_role("services.thinker")))
