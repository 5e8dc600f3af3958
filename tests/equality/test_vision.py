"""The law for images and videos: through the real processes, greedy fp32 output equals
Hugging Face's whole model behind its own processors. Only the thinker on vLLM sees."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from transformers import AutoProcessor

import antiphon
from antiphon import Delivery
from antiphon.errors import InvalidArgument
from antiphon_testkit.conversations import chat_messages
from antiphon_tools.launcher.launcher import Running
from tests.equality.asking import ask, check, groups
from tests.equality.pictures import case, clip, picture
from tests.equality.prompt_rows import check_rows, hear_prompt
from tests.equality.test_fidelity import TEXT_CASES, sweep
from tests.equality.truth import Truth

pytest.importorskip("vllm")
pytestmark = [
    pytest.mark.equality,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]


@pytest.fixture(autouse=True)
def sees(thinker_engine: str) -> None:
    if thinker_engine != "vllm":
        pytest.skip("only --stage-engine vllm sees")


# Not 0 first: where speech ends at its first draw Hugging Face raises.
SEEDS = (1, 3, 0, 2)
LONG = " ".join(f"number {count} of the many words that people say" for count in range(12))
IMAGE_CASES = [
    case(("user", [picture(seed, 160, 96), "What is this?"]), talker_max_tokens=20)
    for seed in SEEDS
]
LARGE_CASES = [
    case(("user", ["Look:", picture(seed, 500, 380)]), talker_max_tokens=20) for seed in SEEDS
]
TWO_CASES = [
    case(
        ("system", "You are a quiet voice."),
        ("user", [picture(seed, 96, 160), "and", picture(seed + 50, 128, 128), "differ how?"]),
        talker_max_tokens=20,
    )
    for seed in SEEDS
]
HEARD_CASES = [
    case(
        (
            "user",
            [sweep(0.5, 100.0 + seed, 700.0), "with", picture(seed, 128, 96), "and",
             sweep(0.3, 300.0, 200.0), "what?"],
        ),
        talker_max_tokens=20,
    )
    for seed in SEEDS
]  # fmt: skip
TURN_CASES = [
    case(
        ("system", "Be brief."),
        ("user", ["See:", picture(seed, 160, 128)]),
        ("assistant", "I see it."),
        ("user", text),
        ("assistant", "Yes."),
        ("user", [sweep(0.4, 200.0 + seed, 300.0), f"And now? {LONG}"]),
        talker_max_tokens=20,
    )
    for seed, text in enumerate(("What else?", "Again.", "Go on.", "No?", "Who?", "Well?"))
]
# 4 frames a second: of 9 frames, at two a second, 4 are seen.
CLIP = {"size": (64, 48), "seen": (448, 320), "indices": (0, 3, 5, 8), "rate": 4.0}
VIDEO_CASES = [
    case(("user", [clip(seed, **CLIP), "What moves?"]), talker_max_tokens=20)  # type: ignore[arg-type]
    for seed in SEEDS
]
ALL_CASES = [
    case(
        ("user", ["First", clip(seed, **CLIP), "then", picture(seed, 96, 96)]),  # type: ignore[arg-type]
        ("assistant", "Yes."),
        ("user", [sweep(0.4, 150.0 + seed, 600.0), "then", picture(seed + 9, 64, 128), "so?"]),
        talker_max_tokens=20,
    )
    for seed in SEEDS
]
KINDS = {
    "image": IMAGE_CASES,
    "large": LARGE_CASES,
    "two": TWO_CASES,
    "heard": HEARD_CASES,
    "turns": TURN_CASES,
    "video": VIDEO_CASES,
    "all": ALL_CASES,
}


@pytest.mark.parametrize("kind", KINDS)
async def test_answer_equals_the_reference(
    client: antiphon.AsyncClient, truth: Truth, kind: str
) -> None:
    (seen,) = truth.safe(KINDS[kind], 1)
    # The second comes out of the prefix cache.
    for delivery in (None, Delivery.WHOLE):
        answer = await ask(client, seen, groups=groups(truth), delivery=delivery)
        check(answer, truth.of(seen))
        ids = truth.of(seen).prompt_ids
        config = truth.reference.model.config.thinker_config
        shown = np.isin(ids, (config.image_token_id, config.video_token_id)).sum()
        assert answer.finished.usage.prompt_image_tokens == shown > 0


async def test_sessions_at_once_equal_the_reference(
    client: antiphon.AsyncClient, truth: Truth
) -> None:
    cases = [each for kind in KINDS.values() for each in truth.safe(kind, 1)]
    cases += truth.safe(TEXT_CASES, 2)
    answers = await asyncio.gather(*(ask(client, each, groups=groups(truth)) for each in cases))
    for each, answer in zip(cases, answers, strict=True):
        check(answer, truth.of(each))


async def test_rows_equal_the_reference(running: Running, truth: Truth) -> None:
    address = running.processes["thinker"].address
    cases = [each for kind in KINDS.values() for each in kind[:2]]
    heard = await asyncio.gather(
        *(hear_prompt(address, f"picture {n}", each.conversation) for n, each in enumerate(cases))
    )
    for each, tensors in zip(cases, heard, strict=True):
        check_rows(tensors, truth, each)


async def test_what_was_seen_is_not_computed_again(
    client: antiphon.AsyncClient, truth: Truth
) -> None:
    """And another image of the same size, after the same words, is not taken for it."""
    for seen in truth.safe(LARGE_CASES, 2):
        asked = replace(seen, audio=False)
        await ask(client, asked, groups=groups(truth))
        again = await ask(client, asked, groups=groups(truth))
        assert again.ids == truth.of(seen).text_ids.tolist()
        assert again.finished.usage.prompt_cached_tokens >= 128


async def test_server_says_what_it_takes(client: antiphon.AsyncClient) -> None:
    (model,) = (await client.server_info()).models
    assert model.input_kinds == ("text", "audio", "image", "video", "tools")


BROKEN = {
    # The gateway reads an image's header, and no more.
    "header": (b"\x89PNG\r\n\x1a\n and no more", "image", ""),
    "pixels": (picture(7, 90, 90).file[:3000], "image", "thinker"),
    "shape": (picture(8, 900, 3).file, "image", "thinker"),
    "frames": (clip(9, **CLIP).file[:700], "video", "thinker"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", BROKEN)
async def test_file_that_cannot_be_decoded_fails_its_request_alone(
    client: antiphon.AsyncClient, truth: Truth, name: str
) -> None:
    file, kind, stage = BROKEN[name]
    part = antiphon.Video(file) if kind == "video" else antiphon.Image(file)
    (sound,) = truth.safe(IMAGE_CASES, 1)
    asked = asyncio.create_task(ask(client, sound, groups=groups(truth)))
    with pytest.raises(InvalidArgument) as raised:
        await client.generate([antiphon.Message.user("See:", part)]).collect()
    field = f"messages[0].parts[1].{kind}.file"
    assert (raised.value.field, raised.value.stage) == (field, stage)
    check(await asked, truth.of(sound))


@pytest.mark.parametrize("kind", ["two", "heard", "video", "all"])
async def test_reference_is_given_what_the_whole_processor_makes(
    checkpoint: Path, truth: Truth, kind: str
) -> None:
    """The reference puts it together from parts; here all of it can be built."""
    processor: Any = AutoProcessor.from_pretrained(checkpoint)
    shown = KINDS[kind][0]
    rendered = truth.reference.tokenizer.apply_chat_template(
        chat_messages(shown.conversation),
        tokenize=False,
        add_generation_prompt=True,
    )
    wanted = processor(
        text=rendered,
        images=[Image.fromarray(each) for each in shown.images] or None,
        videos=list(shown.videos) or None,
        audio=list(shown.conversation.recordings) or None,
        fps=2.0,
        return_tensors="pt",
    )
    made = truth.reference.inputs(shown.conversation, shown.images, shown.videos)
    assert set(made) == set(wanted)
    for name, value in made.items():
        np.testing.assert_array_equal(value, np.asarray(wanted[name]), err_msg=name)


async def test_replies_depend_on_what_is_seen(truth: Truth) -> None:
    for kind in ("image", "video"):
        replies = {truth.of(each).text_ids.tobytes() for each in KINDS[kind][:4]}
        assert len(replies) > 1
