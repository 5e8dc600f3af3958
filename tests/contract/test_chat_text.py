from __future__ import annotations

import pytest

from tests.contract.conftest import Door

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_chat_answers_text_when_modalities_are_absent(door: Door) -> None:
    completion = await door.openai.chat.completions.create(
        model="fake-omni", messages=[{"role": "user", "content": "Hi"}]
    )
    assert completion.choices[0].message.content == "Hello wörld!"
