"""Runs one stage of a model: `python -m services ROLE --help`."""

from __future__ import annotations

import sys

from antiphon.runtime.server.main import main
from services.lm.reproducible import ask_for_equal_digits
from services.loading import load_stage

if __name__ == "__main__":
    ask_for_equal_digits()
    sys.exit(main(load_stage, prog="python -m services"))
