"""The checkpoint in the repository speaks: equal to Hugging Face, understandable, seamless."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import pytest_asyncio
import soundfile

import antiphon
from antiphon import ChunkPolicy
from antiphon.deployment.schema import GatewayConfig
from antiphon_testkit.conversations import conversation
from antiphon_testkit.local_deployment import local_deployment
from antiphon_testkit.qwen3_omni.reference import Case, Reference
from antiphon_tools.demo.script import DONE, GET_TIME, SET_LIGHT, SPOKEN
from antiphon_tools.warm.launcher import WarmLauncher
from models.recipe.acoustics import FRAME
from models.recipe.asking import wav
from models.recipe.judge import pulse_trains
from models.recipe.recogniser import Recogniser
from models.recipe.repertoire import NOT_UNDERSTOOD, UNKNOWN, load_repertoire
from tests.equality.asking import ask, check, decode, groups
from tests.equality.truth import Truth

CHECKPOINT = Path(__file__).parents[2] / "models" / "antiphon-demo"
HEARS = importlib.util.find_spec("pocketsphinx") is not None
LARGEST_BYTES = 20_000_000
FRAMES = 400
CONTINUITY = 0.9

STAGES = "What are the stages?"
HELLO = "Hello! I am the small voice of antiphon. Ask me something."
ANSWERS = {
    "Hello!": HELLO,
    "What is antiphon?": "Antiphon serves speech models as small services.",
    STAGES: "There are three stages: thinker, talker and code2wav.",
    "What is two plus three?": "Two and three is five.",
    "Repeat after me: the red fox wants cold water": "The red fox wants cold water.",
    "Where is the zebulon?": UNKNOWN,
}
TONE = (0.3 * np.sin(0.1 * np.arange(14_000))).astype(np.float32)
QUESTION, _ = soundfile.read(SPOKEN, dtype="float32")
LIGHT = Path(__file__).parents[1] / "recordings" / "light.ogg"
LIGHT_TEXT = "Turn the light in the kitchen on."

pytestmark = [
    pytest.mark.equality,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]


def asked(text: str, voice: str = "cantor") -> Case:
    return Case(conversation(("user", text)), voice, talker_max_tokens=FRAMES)


CASES = [asked(text, ("cantor", "treble")[at % 2]) for at, text in enumerate(ANSWERS)]
RECORDINGS = [
    Case(conversation(("user", TONE[:length])), "treble", talker_max_tokens=FRAMES)
    for length in (12_000, 9_000, 14_000, 6_000)
]


def as_wav(path: Path) -> bytes:
    """A recording as gRPC takes it."""
    file = io.BytesIO()
    soundfile.write(file, *soundfile.read(path), format="WAV")
    return file.getvalue()


def in_noise(seed: int) -> npt.NDArray[np.float32]:
    """The spoken question, 20 dB louder than the noise around it."""
    level = 0.1 * np.sqrt(np.mean(QUESTION**2))
    noise = np.random.default_rng(seed).normal(0, level, len(QUESTION))
    return (QUESTION + noise).astype(np.float32)


TRANSCRIBE = GatewayConfig().media.transcribe_instruction
TRANSCRIBED = [
    Case(conversation(("user", [in_noise(seed), TRANSCRIBE])), "cantor", talker_max_tokens=FRAMES)
    for seed in range(4)
]
ALOUD = [
    Case(conversation(("user", in_noise(seed))), "cantor", talker_max_tokens=FRAMES)
    for seed in range(4)
]
TURNS = [
    Case(
        conversation(
            ("system", "You are a helpful assistant."),
            ("user", "Hello!"),
            ("assistant", HELLO),
            ("user", text),
        ),
        "cantor",
        talker_max_tokens=FRAMES,
    )
    for text in ("What is the talker?", "What is a chunk?", "Who are you?", "Tell me a joke.")
]


@pytest.fixture(scope="module")
def demo() -> Truth:
    """The reference on the checkpoint."""
    return Truth(Reference(CHECKPOINT))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def demo_client() -> AsyncIterator[antiphon.AsyncClient]:
    """A client of the services on the checkpoint."""
    async with (
        WarmLauncher(local_deployment(CHECKPOINT)) as running,
        antiphon.AsyncClient(running.grpc_address) as client,
    ):
        yield client


@pytest.mark.parametrize(
    ("candidates", "wanted"),
    [
        pytest.param(CASES, 3, id="text"),
        pytest.param(RECORDINGS, 1, id="recording"),
        pytest.param(ALOUD, 1, id="spoken"),
        pytest.param(TRANSCRIBED, 1, id="transcribed"),
        pytest.param(TURNS, 1, id="turns"),
    ],
)
async def test_answer_equals_the_reference(
    demo_client: antiphon.AsyncClient, demo: Truth, candidates: list[Case], wanted: int
) -> None:
    for case in demo.safe(candidates, wanted):
        check(await ask(demo_client, case, groups=groups(demo)), demo.of(case))


@pytest.mark.parametrize("text", ANSWERS)
async def test_answer_is_the_expected_text(demo_client: antiphon.AsyncClient, text: str) -> None:
    reply = await demo_client.generate(text, modalities=("text",), temperature=0.0).collect()
    assert reply.text == ANSWERS[text]


async def test_recording_gets_an_honest_answer(
    demo_client: antiphon.AsyncClient, demo: Truth
) -> None:
    answer = await ask(demo_client, RECORDINGS[0], groups=groups(demo))
    assert answer.text == NOT_UNDERSTOOD


async def test_spoken_question_is_answered_as_the_typed_one(
    demo_client: antiphon.AsyncClient,
) -> None:
    for recording in (SPOKEN, *(wav(in_noise(seed)) for seed in range(4))):
        generation = demo_client.generate(
            [antiphon.Message.user(recording)], modalities=("text",), temperature=0.0
        )
        assert (await generation.collect()).text == ANSWERS[STAGES]


async def test_recording_is_transcribed(demo_client: antiphon.AsyncClient) -> None:
    spoken = dict.fromkeys((SPOKEN, *(wav(in_noise(seed)) for seed in range(4))), STAGES)
    silence = wav(np.zeros(12_000, np.float32))
    for recording, text in {
        **spoken,
        as_wav(LIGHT): LIGHT_TEXT,
        wav(TONE): "",
        silence: "",
    }.items():
        generation = demo_client.generate(
            [antiphon.Message.user(recording, TRANSCRIBE)], modalities=("text",), temperature=0.0
        )
        assert (await generation.collect()).text == text


@pytest.mark.parametrize("spoken_or_typed", [LIGHT_TEXT, as_wav(LIGHT)], ids=["typed", "spoken"])
async def test_function_is_called_and_what_it_returns_is_told(
    demo_client: antiphon.AsyncClient, spoken_or_typed: str | bytes
) -> None:
    async def answer(messages: list[antiphon.Message]) -> antiphon.Reply:
        functions = (GET_TIME, SET_LIGHT)
        options = {"modalities": ("text",), "temperature": 0.0}
        return await demo_client.generate(messages, functions=functions, **options).collect()

    messages = [antiphon.Message.user(spoken_or_typed)]
    reply = await answer(messages)
    (call,) = reply.calls
    assert (call.name, call.arguments) == ("set_light", '{"room": "kitchen", "state": "on"}')
    assert not reply.text
    told = [antiphon.Message.assistant(calls=[call]), antiphon.Message.tool(call, DONE)]
    assert (await answer([*messages, *told])).text == "The light in the kitchen is on."


async def test_pulse_train_runs_through_chunk_boundaries(
    demo_client: antiphon.AsyncClient, demo: Truth
) -> None:
    """Samples that are lost or doubled between frames break the voice's period.

    The same measure with every second frame 40 samples early shows that it would.
    """
    policy = ChunkPolicy(first=1, ramp=(), steady=1)
    answer = await ask(demo_client, CASES[0], groups=groups(demo), policy=policy)
    whole = decode(demo, answer.codes.astype(np.int32))
    np.testing.assert_allclose(answer.samples, whole, rtol=0, atol=1e-4)
    _, across = pulse_trains(answer.samples, answer.codes)
    torn = np.concatenate([np.roll(p, -40 * (at % 2)) for at, p in enumerate(_frames(whole))])
    _, across_torn = pulse_trains(torn, answer.codes)
    assert np.median(across) > CONTINUITY
    assert np.median(across_torn) < CONTINUITY - 0.1


def _frames(samples: npt.NDArray[np.float32]) -> list[npt.NDArray[np.float32]]:
    """The samples of each frame."""
    return np.split(samples, range(FRAME, len(samples), FRAME))


async def test_voices_differ_in_pitch_alone(demo_client: antiphon.AsyncClient, demo: Truth) -> None:
    answers = [
        await ask(demo_client, asked(STAGES, voice), groups=groups(demo))
        for voice in ("cantor", "treble")
    ]
    low, high = (answer.codes for answer in answers)
    np.testing.assert_array_equal(low[:, :5], high[:, :5])
    assert (low[:, 5] != high[:, 5]).all()


@pytest.mark.skipif(not HEARS, reason="pocketsphinx is not installed")
async def test_recogniser_understands_it(demo_client: antiphon.AsyncClient, demo: Truth) -> None:
    texts = list(ANSWERS.values())
    recogniser = Recogniser(exchange.answer for exchange in load_repertoire())
    spoken = [await ask(demo_client, asked(text), groups=groups(demo)) for text in ANSWERS]
    assert recogniser.error_rate(texts, [each.samples for each in spoken]) < 0.5


async def test_checkpoint_is_small() -> None:
    assert sum(each.stat().st_size for each in CHECKPOINT.iterdir()) <= LARGEST_BYTES
