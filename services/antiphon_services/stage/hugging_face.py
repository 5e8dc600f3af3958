"""What transformers reads of a checkpoint directory, with errors that name file and remedy.

By itself it answers a missing file with a word about its hub, and an odd value with whatever
it stumbles over; and it makes up a part of the model that `config.json` does not have.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig

from antiphon.errors import FailedPrecondition
from antiphon.pipelines.files import CONFIG_FILE, REMEDY, read_config, reading


def load_config(config_class: type[PreTrainedConfig], model_dir: Path, *parts: str) -> Any:
    """The checkpoint's configuration, of which these parts must be there, each an object.

    Raises `FailedPrecondition` if one is missing or a value is not what it must be.
    """
    path = model_dir / CONFIG_FILE
    told = read_config(model_dir)
    for part in parts:
        if not isinstance(told.get(part), dict):
            raise FailedPrecondition(f"{path}: {part} is missing or no object; {REMEDY}")
    with reading(path):
        return config_class.from_dict(told)
