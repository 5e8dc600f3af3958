"""The environment of a process that runs a stage."""

from __future__ import annotations

from antiphon_services.lm.reproducible import ask_for_equal_digits
from antiphon_services.stage.nameless_user import settle_user


def prepare_environment() -> None:
    """Set the environment variables that libraries read. Call this function before torch is
    imported.
    """
    settle_user()
    ask_for_equal_digits()
