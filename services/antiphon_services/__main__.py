"""Runs one stage of a model: `python -m antiphon_services ROLE --help`."""

from __future__ import annotations

import sys

from antiphon.runtime.server.main import main
from antiphon_services.lm.reproducible import ask_for_equal_digits
from antiphon_services.loading import load_stage
from antiphon_services.nameless_user import settle_user

if __name__ == "__main__":
    settle_user()
    ask_for_equal_digits()
    sys.exit(main(load_stage, prog="python -m antiphon_services"))
