"""Write the recordings in this folder: sentences as espeak-ng speaks them, in several voices.

    python tests/recordings/make.py tests/recordings

They are there so that tests need no espeak-ng. Each begins and ends without silence.
"""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import soundfile
import soxr

RATE_HZ = 24_000
SENTENCES = {
    "slow": ("en-us", 140, "Could you tell me how this works?"),
    "fast": ("en-gb", 210, "Stop, that is not what I have asked for."),
    "low": ("en-us+m3", 165, "Please say the first sentence again."),
    "high": ("en-gb+f2", 175, "Who are you, and where do you come from?"),
    "light": ("en-gb+f2", 150, "Turn the light in the kitchen on."),
}


def main() -> None:
    for name, (voice, speed, text) in SENTENCES.items():
        command = ["espeak-ng", "-v", voice, "-s", str(speed), "-w", "/dev/stdout", text]
        wav = subprocess.run(command, check=True, capture_output=True).stdout
        data = wav.index(b"data") + 8
        samples = np.frombuffer(wav[data : len(wav) - (len(wav) - data) % 2], "<i2") / 32768
        rate_hz = int.from_bytes(wav[24:28], "little")
        samples = soxr.resample(samples.astype(np.float32), rate_hz, RATE_HZ)
        (loud,) = np.nonzero(np.abs(samples) > 0.01)
        samples = samples[loud[0] : loud[-1] + 1]
        file = io.BytesIO()
        soundfile.write(file, samples * 0.5, RATE_HZ, format="OGG", subtype="OPUS")
        (Path(sys.argv[1]) / f"{name}.ogg").write_bytes(file.getvalue())


if __name__ == "__main__":
    main()
