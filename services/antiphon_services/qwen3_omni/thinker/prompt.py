"""Checks whether Qwen3-Omni's talker can speak the reply to a prompt."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from antiphon.errors import InvalidArgument
from antiphon.pipelines.qwen3_omni import SpecialIds, user_positions


def need_user(ids: npt.NDArray[np.int32], special: SpecialIds) -> None:
    """Raise `InvalidArgument` if the prompt doesn't contain a user message."""
    if not len(user_positions(ids, special)):
        raise InvalidArgument(
            "messages: at least one user message is required for speech", field="messages"
        )
