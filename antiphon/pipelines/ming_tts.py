"""Ming TTS (`inclusionAI/Ming-omni-tts-0.5B`): talker -> code2wav.

What its two stages must agree on and nothing else. Reference: the vendor's repository,
inclusionAI/Ming-omni-tts. The talker reads the text itself and gives latents of floats instead of
codes; the audio decoder turns them into samples.
"""

from __future__ import annotations

ARCHITECTURE = "BailingMMNativeForConditionalGeneration"

SAMPLE_RATE_HZ = 44_100
"""Of reference recordings and of the audio that is made."""

LATENT_WIDTH = 64
STEP_LATENTS = 4
"""Latents that a step of the talker makes, 0.32 s."""
HISTORY_LATENTS = 32
"""Latents before a step that its flow sees."""

LATENT_ROWS = 4
"""Rows of the audio decoder for each latent."""
ROW_SAMPLES = 882
LATENT_SAMPLES = LATENT_ROWS * ROW_SAMPLES

SPEAKER_WIDTH = 192
