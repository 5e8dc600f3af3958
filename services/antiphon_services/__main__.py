"""Runs one stage of a model: `python -m antiphon_services ROLE --help`."""

from __future__ import annotations

from antiphon.early_stop import end_on_early_stop

if __name__ == "__main__":
    end_on_early_stop()

import sys
from collections.abc import Sequence

from antiphon.runtime.server.main import main
from antiphon_services.stage.loading import load_stage
from antiphon_services.stage_environment import prepare_environment


def serve_stage(
    arguments: Sequence[str] | None = None, *, prog: str = "python -m antiphon_services"
) -> int:
    """Run a stage until it is stopped. Returns the exit status."""
    prepare_environment()
    return main(load_stage, arguments, prog=prog)


if __name__ == "__main__":
    sys.exit(serve_stage())
