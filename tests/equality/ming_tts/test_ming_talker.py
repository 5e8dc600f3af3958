"""The talker's prompts, hidden states, stop decisions and latents are the vendor's."""

from __future__ import annotations

import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tests.equality.ming_tts.ming_asking import Recorded
from tests.equality.ming_tts.ming_cases import LATENT_STEP, Case, all_cases
from tests.equality.ming_tts.ming_in_process import TalkerInProcess

ROW_STEP = 3
TOLERANCE = 1e-4


@pytest.mark.parametrize("case", list(all_cases()), ids=lambda case: case.name)
def test_latents_and_stop_decisions(
    case: Case, talker: TalkerInProcess, recorded: Recorded
) -> None:
    arrays = recorded.of(case)
    prompt = talker.prompt(case)
    assert_array_equal(prompt.ids, arrays["ids"])
    assert_allclose(
        talker.model.rows(prompt, 0, len(prompt.ids))[::ROW_STEP, ::ROW_STEP],
        arrays["rows"],
        atol=TOLERANCE,
    )
    said = talker.speak(case, prompt, recorded.seed(case))
    assert len(said.stop) == len(arrays["stop"])
    assert_allclose(said.stop, arrays["stop"], atol=TOLERANCE)
    assert_allclose(said.latents[:, ::LATENT_STEP], arrays["latents"], atol=TOLERANCE)
