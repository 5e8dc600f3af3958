"""What the client makes of messages and options, and what importing it costs."""

from __future__ import annotations

import json
import subprocess
import sys
import wave
from pathlib import Path

import pytest

import antiphon
from antiphon.client.request import generate_request
from antiphon.errors import FailedPrecondition, InvalidArgument
from antiphon.v1 import session_pb2


def test_request_text_is_one_user_message_when_given_a_str() -> None:
    request = generate_request("Hi")
    assert [message.role for message in request.messages] == ["user"]
    assert request.messages[0].parts[0].text == "Hi"
    assert not request.modalities
    assert not request.sampling
    assert not request.HasField("chunk_policy")
    assert request.delivery == session_pb2.DELIVERY_UNSPECIFIED


def test_request_parts_keep_their_order_when_text_and_audio_mix(tmp_path: Path) -> None:
    path = tmp_path / "question.wav"
    path.write_bytes(b"RIFF from a file")
    request = generate_request(
        [antiphon.Message.system("Be brief."), antiphon.Message.user(path, "What?", b"RIFF bytes")]
    )
    parts = request.messages[1].parts
    assert [part.WhichOneof("content") for part in parts] == ["audio", "text", "audio"]
    assert (parts[0].audio.wav, parts[2].audio.wav) == (b"RIFF from a file", b"RIFF bytes")


def test_request_carries_files_when_a_message_shows_something(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(b"a clip")
    message = antiphon.Message.user(antiphon.Image(b"a picture"), antiphon.Video(path))
    parts = generate_request([message]).messages[0].parts
    assert [part.WhichOneof("content") for part in parts] == ["image", "video"]
    assert (parts[0].image.file, parts[1].video.file) == (b"a picture", b"a clip")


def test_request_names_the_part_when_a_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"gone\.wav") as caught:
        generate_request([antiphon.Message.user("Hi", tmp_path / "gone.wav")])
    assert caught.value.field == "messages[0].parts[1]"


def test_request_options_reach_the_message_when_all_are_given() -> None:
    request = generate_request(
        "Hi",
        model="tiny",
        modalities=("audio",),
        voice="ethan",
        temperature=0.0,
        top_p=0.9,
        max_tokens=5,
        stop="END",
        seed=3,
        top_logprobs=0,
        sampling={
            "": antiphon.SamplingRequest(top_k=9, max_tokens=6),
            "talker": antiphon.SamplingRequest(max_tokens=7),
            "vocoder": antiphon.SamplingRequest(),
        },
        delivery=antiphon.Delivery.WHOLE,
        chunk_policy=antiphon.ChunkPolicy(first=1, ramp=(2,), steady=4),
        include_ids=True,
    )
    assert set(request.sampling) == {"", "talker"}
    reading, talker = request.sampling[""], request.sampling["talker"]
    assert reading.HasField("temperature")
    assert (reading.max_tokens, list(reading.stop), reading.seed) == (5, ["END"], 3)
    assert reading.top_k == 9
    assert reading.HasField("top_logprobs")
    assert talker.max_tokens == 7
    # The gateway gives the seed to all.
    assert not talker.HasField("seed")
    assert not talker.HasField("top_logprobs")
    assert not talker.HasField("temperature")
    assert request.delivery == session_pb2.DELIVERY_WHOLE
    assert (request.chunk_policy.first, list(request.chunk_policy.ramp)) == (1, [2])
    assert (request.model, request.voice, list(request.modalities)) == ("tiny", "ethan", ["audio"])
    assert request.include_ids


def test_request_options_are_text_numbers_and_recordings(tmp_path: Path) -> None:
    path = tmp_path / "voice.wav"
    path.write_bytes(b"RIFF from a file")
    options = {"style": "waltz", "tempo": 2, "pitch": 0.5, "voice": path, "room": b"RIFF bytes"}
    given = generate_request("Hi", options=options).options
    assert {name: each.WhichOneof("value") for name, each in given.items()} == {
        "style": "text", "tempo": "number", "pitch": "number", "voice": "audio", "room": "audio",
    }  # fmt: skip
    assert (given["style"].text, given["tempo"].number, given["pitch"].number) == ("waltz", 2, 0.5)
    assert given["voice"].audio.wav == b"RIFF from a file"
    assert given["room"].audio.wav == b"RIFF bytes"


def test_request_stage_keeps_its_own_seed_when_both_are_given() -> None:
    request = generate_request("Hi", seed=3, sampling={"talker": antiphon.SamplingRequest(seed=4)})
    assert (request.sampling[""].seed, request.sampling["talker"].seed) == (3, 4)


def test_request_is_refused_when_temperature_is_negative() -> None:
    with pytest.raises(InvalidArgument) as caught:
        generate_request("Hi", temperature=-1.0)
    assert caught.value.field == "temperature"


def a_reply(pcm16: bytes) -> antiphon.Reply:
    return antiphon.Reply("", pcm16, 24000, antiphon.FinishReason.STOP, antiphon.Usage(), {})


def test_reply_wav_reads_back_when_saved(tmp_path: Path) -> None:
    path = a_reply(b"\x01\x00\xff\x7f").save_wav(tmp_path / "reply.wav")
    with wave.open(str(path)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 24000)
        assert file.readframes(10) == b"\x01\x00\xff\x7f"


def test_reply_refuses_to_save_when_there_is_no_audio(tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match="no audio"):
        a_reply(b"").save_wav(tmp_path / "reply.wav")
    assert not list(tmp_path.iterdir())


def test_image_is_saved_as_it_is(tmp_path: Path) -> None:
    image = antiphon.MadeImage(b"\x89PNG", "image/png")
    assert image.save(str(tmp_path / "cat.png")).read_bytes() == b"\x89PNG"


def loaded_by(statement: str) -> set[str]:
    """Top-level packages outside the standard library that a statement loads."""
    script = f"import json, sys\n{statement}\nprint(json.dumps(list(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    names = {name.partition(".")[0] for name in json.loads(result.stdout)}
    return names & {"antiphon", "google", "grpc", "msgspec", "numpy", "torch", "transformers"}


def test_package_loads_nothing_when_imported() -> None:
    assert loaded_by("import antiphon") == {"antiphon"}


def test_package_client_needs_only_grpc_when_used() -> None:
    assert loaded_by("import antiphon; antiphon.Client, antiphon.AsyncClient") == {
        "antiphon",
        "google",
        "grpc",
    }


def test_package_names_all_resolve_when_asked_for() -> None:
    for name in antiphon.__all__:
        assert getattr(getattr(antiphon, name), "__name__", name) == name
    assert set(antiphon.__all__) <= set(dir(antiphon))
    owners = {getattr(getattr(antiphon, name), "__module__", "") for name in antiphon.__all__}
    modules = [sys.modules[each] for each in owners if each.startswith("antiphon.")]
    there = {name for module in modules for name in vars(module) if not name.startswith("__")}
    others = there - set(antiphon.__all__)
    # Submodules that have been imported are there as well.
    submodules = {name for name in others if f"antiphon.{name}" in sys.modules}
    found = {name for name in others - submodules - {"annotations"} if hasattr(antiphon, name)}
    assert len(others) > 100
    assert not found
    with pytest.raises(AttributeError, match="Nonsense"):
        antiphon.Nonsense  # noqa: B018
