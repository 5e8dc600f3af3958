"""`make up` hands stages' settings on, and chooses the environment that an engine needs."""

from __future__ import annotations

import subprocess

import pytest

from tools.launcher.plan import CHECKOUT


@pytest.mark.parametrize(
    ("stage", "environment", "handed_on"),
    [
        ("", ".venv", ""),
        ("brain.slots=4 mouth.device=cuda:1", ".venv", "--stage brain.slots=4 mouth.device=cuda:1"),
        ("brain.engine=torch", ".venv", "--stage brain.engine=torch"),
        (
            "mouth.slots=4 brain.engine=vllm",
            ".venv-vllm",
            "--stage mouth.slots=4 brain.engine=vllm",
        ),
    ],
)
def test_settings_of_stages_are_handed_on_and_choose_the_environment(
    stage: str, environment: str, handed_on: str
) -> None:
    said = subprocess.run(
        ["make", "--dry-run", "up", f"STAGE={stage}"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.replace("\\\n", " ")
    (command,) = [line for line in said.splitlines() if " -m tools.launcher up" in line]
    assert command.startswith(f"{environment}/bin/python ")
    assert ("--stage" in command) is bool(handed_on)
    assert handed_on in command
