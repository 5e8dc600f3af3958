"""Runs the code2wav stage: `python -m services.code2wav --help`."""

from __future__ import annotations

import sys

from antiphon.runtime.server.main import main
from services.loading import load_role

if __name__ == "__main__":
    sys.exit(main("code2wav", load_role("services.code2wav")))
