"""Hold a typed conversation over gRPC, and interrupt an answer."""

import argparse
import wave
from pathlib import Path

import antiphon

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("questions", nargs="*", default=["What is antiphon?", "What is a talker?"])
arguments.add_argument("--address", default="localhost:50050")
arguments.add_argument("--out", type=Path, default=Path("answer.wav"))
options = arguments.parse_args()

with antiphon.Client(options.address) as client, client.converse() as call:
    audio = bytearray()
    for number, question in enumerate(options.questions):
        print(f"You: {question}\nModel: ", end="", flush=True)
        call.add(question)
        call.respond()
        last = number == len(options.questions) - 1
        for event in call:
            match event:
                case antiphon.ResponseTextDelta(text=text):
                    print(text, end="", flush=True)
                case antiphon.ResponseAudioDelta(pcm16=pcm16):
                    audio += pcm16
                    if not last and len(audio) > call.sample_rate_hz:
                        # Half a second has been played, so the rest is cut off.
                        call.interrupt(0.5)
                        last = True
                case antiphon.ResponseDone(response=response):
                    print(f" [{response.status}]")
                    break
    with wave.open(str(options.out), "wb") as file:
        file.setparams((1, 2, call.sample_rate_hz, 0, "NONE", ""))
        file.writeframes(audio)
    print(f"The audio is in {options.out}.")
