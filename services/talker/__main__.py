"""Runs the talker stage: `python -m services.talker --help`."""

from __future__ import annotations

import sys

from antiphon.runtime.server.main import main
from services.lm.reproducible import ask_for_equal_digits
from services.loading import load_role

if __name__ == "__main__":
    ask_for_equal_digits()
    sys.exit(main("talker", load_role("services.talker")))
