"""The hidden rows that the thinker hands out equal Hugging Face's, alone and in company."""

from __future__ import annotations

import asyncio

import pytest

from antiphon_tools.launcher.launcher import Running
from tests.equality.prompt_rows import check_rows, hear_prompt
from tests.equality.test_fidelity import AUDIO_CASES, MIXED_CASES, TEXT_CASES, TURN_CASES
from tests.equality.truth import Truth

pytestmark = [
    pytest.mark.equality,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]


async def test_rows_equal_the_reference(running: Running, truth: Truth) -> None:
    address = running.processes["thinker"].address
    cases = [*AUDIO_CASES, *MIXED_CASES[:2], *TURN_CASES[:2]]
    heard = await asyncio.gather(
        *(hear_prompt(address, f"rows {n}", case.conversation) for n, case in enumerate(cases))
    )
    for case, tensors in zip(cases, heard, strict=True):
        check_rows(tensors, truth, case)


async def test_no_rows_leave_when_there_are_only_words(running: Running) -> None:
    address = running.processes["thinker"].address
    heard = await hear_prompt(address, "words", TEXT_CASES[0].conversation)
    assert set(heard) == {"ids"}
