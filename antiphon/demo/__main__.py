"""`python -m antiphon.demo`: starts the whole system, asks it three things, shows its times.

Without a model it makes a tiny one with random weights: everything is real but
the voice, which sounds like noise.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from antiphon.client.aio import AsyncClient
from antiphon.client.request import GenerateOptions, Message, Modality
from antiphon.demo.measure import Measured, Progress, measure
from antiphon.demo.sweep import sweep_wav
from antiphon.demo.tables import results_table, timeline
from antiphon.deployment.console import Console
from antiphon.deployment.launcher import Launcher, Running
from antiphon.deployment.schema import Deployment, GatewayConfig
from antiphon.errors import AntiphonError, Internal
from antiphon.sampling import SamplingRequest

# A model with random weights has no reason to stop by itself.
TINY_TEXT_TOKENS = 40
TINY_CODEC_FRAMES = 75
SEED = 1
SHOWN_CHARACTERS = 56


@dataclass(frozen=True, slots=True)
class Question:
    """A request of the demonstration."""

    name: str
    message: Message
    modalities: tuple[Modality, ...]
    file: str = ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status."""
    options = _parser().parse_args(arguments)
    console = Console(sys.stdout, output=False)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        with _checkpoint(options.model, console) as model:
            limits = _limits(tiny=options.model is None)
            asyncio.run(_demonstrate(model, options.out, limits, console))
    except (AntiphonError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        console.say("\ninterrupted; everything was stopped")
        return 130
    if options.model is None:
        console.say("The weights are random, so the speech is noise; with --model DIR it speaks.")
    return 0


async def _demonstrate(model: Path, out: Path, limits: GenerateOptions, console: Console) -> None:
    """Start, ask, tell the times, stop."""
    gateway = GatewayConfig(http_listen="127.0.0.1:0", grpc_listen="127.0.0.1:0")
    launcher = Launcher(Deployment(model=str(model), gateway=gateway), report=console)
    console.say("Starting every stage and the gateway, each as its own process:")
    async with launcher as running:
        console.say(f"Ready in {running.startup_s:.1f} s: {running.http_url}\n")
        results = await _ask_all(running, out, limits, console)
        for line in results_table(results):
            console.say(line)
        roles = [name for name in running.processes if name != "gateway"]
        for name, measured in results.items():
            console.say(f"\n  {name}: what each stage did")
            for line in timeline(measured.reply.reports, roles):
                console.say(line)
        console.say("\nStopping:")
    console.say("Stopped; nothing is left running.")


async def _ask_all(
    running: Running, out: Path, limits: GenerateOptions, console: Console
) -> dict[str, Measured]:
    """Ask each question, show the answer as it comes, save its audio."""
    results = {}
    async with AsyncClient(running.grpc_address) as client:
        for question in _questions(out):
            show = _Live(question.name, console)
            asked: GenerateOptions = {**limits, "modalities": question.modalities}
            generation = client.generate([question.message], **asked)
            results[question.name] = await measure(generation, show)
            show.end()
            reply = results[question.name].reply
            if question.file and reply.pcm16:
                console.say(f"  saved {reply.save_wav(out / question.file)}")
    console.say()
    return results


def _questions(out: Path) -> list[Question]:
    """Text to text, text to speech, speech to speech."""
    recording = out / "question.wav"
    recording.write_bytes(sweep_wav())
    return [
        Question("text to text", Message.user("What is a microservice?"), ("text",)),
        Question(
            "text to speech",
            Message.user("Say hello, please."),
            ("text", "audio"),
            "text-to-speech.wav",
        ),
        Question(
            "speech to speech",
            Message.user(recording, "What do you hear?"),
            ("text", "audio"),
            "speech-to-speech.wav",
        ),
    ]


class _Live:
    """Shows an answer while it comes; on a terminal in one line that is written over."""

    def __init__(self, name: str, console: Console) -> None:
        self._name = name
        self._console = console
        self._line = ""

    def __call__(self, progress: Progress) -> None:
        text = "".join(each if each.isprintable() else " " for each in progress.text)
        if len(text) > SHOWN_CHARACTERS:
            text = "…" + text[1 - SHOWN_CHARACTERS :]
        audio = f"{progress.audio_s:5.2f} s of audio" if progress.audio_s else ""
        self._line = f"  {self._name:<16}  {audio:<16}  {text}"
        self._console.say_over(self._line)

    def end(self) -> None:
        """Leave the last state standing."""
        self._console.say(self._line)


def _limits(*, tiny: bool) -> GenerateOptions:
    """The same draws each time; lengths are bounded where the model would not end by itself."""
    if not tiny:
        return {"seed": SEED}
    talker = SamplingRequest(max_tokens=TINY_CODEC_FRAMES)
    return {"seed": SEED, "max_tokens": TINY_TEXT_TOKENS, "talker": talker}


@contextmanager
def _checkpoint(model: Path | None, console: Console) -> Iterator[Path]:
    """The given checkpoint, or a tiny one that is gone afterwards."""
    if model is not None:
        yield model
        return
    with tempfile.TemporaryDirectory(prefix="antiphon-demo-") as directory:
        console.say("No --model given: making a tiny checkpoint with random weights ...")
        path = Path(directory) / "tiny-qwen3-omni"
        command = [sys.executable, "-m", "antiphon.testing.tiny_checkpoint", str(path)]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode:
            raise Internal(f"the tiny checkpoint could not be made:\n{result.stderr}")
        yield path


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m antiphon.demo", description=__doc__)
    parser.add_argument("--model", type=Path, metavar="DIR", help="checkpoint directory")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", default=Path("out"), help="where the WAV files go (out)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
