"""What transformers reads of a checkpoint directory, with errors that name file and remedy.

By itself it answers a missing file with a word about its hub, and an odd value with whatever
it stumbles over; and it makes up a part of the model that `config.json` does not have.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import Qwen3OmniMoeConfig

from antiphon.errors import FailedPrecondition
from antiphon.pipelines.files import REMEDY, reading
from antiphon.pipelines.qwen3_omni import CONFIG_FILE, read_config


def load_config(model_dir: Path, *parts: str) -> Any:
    """The checkpoint's configuration, with these parts of the model, such as `talker_config`.

    Raises `FailedPrecondition` if one is missing or a value is not what it must be.
    """
    path = model_dir / CONFIG_FILE
    told = read_config(model_dir)
    for part in parts:
        if not isinstance(told.get(part), dict):
            raise FailedPrecondition(f"{path}: {part} is missing or no object; {REMEDY}")
    with reading(path):
        return Qwen3OmniMoeConfig.from_dict(told)
