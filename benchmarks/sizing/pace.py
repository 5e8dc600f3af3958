"""How long the steps of the benchmark's stages take, as those of an accelerator would."""

from __future__ import annotations

from types import MappingProxyType

STEP_S = MappingProxyType({"thinker": 0.030, "talker": 0.050, "code2wav": 0.030})
"""Of one session, and for each that makes something in the step:"""
SESSION_S = 0.001
SLOTS = 8
