"""The default sampling settings of a checkpoint, as read from its `generation_config.json`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from antiphon.errors import FailedPrecondition, InvalidArgument
from antiphon.pipelines.files import read_json
from antiphon.values.sampling import Sampling, SamplingRequest

FILE = "generation_config.json"
SETTINGS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}
"""Maps Hugging Face's setting names to antiphon's names.

The keys don't include the prefix for the role.
"""

GREEDY = ("do_sample", "dosample")
"""Names for the setting that selects greedy decoding when it is false."""


def default_sampling(model_dir: Path, role: str, otherwise: Sampling) -> Sampling:
    """Return the default sampling settings of a stage.

    Each setting is read from the checkpoint's `<role>_<setting>`. If it is missing there, the value
    in `otherwise` is used. The settings are the keys of `SETTINGS` and the names in `GREEDY`. They
    have no prefix if `role` is empty. All of them are optional, and the file itself is optional as
    well. Raises `FailedPrecondition` if a value is invalid.
    """
    path = model_dir / FILE
    found = read_json(path) if path.exists() else {}
    prefix = f"{role}_" if role else ""
    given = {
        name: found[f"{prefix}{setting}"]
        for setting, name in SETTINGS.items()
        if f"{prefix}{setting}" in found
    }
    if any(found.get(f"{prefix}{setting}") is False for setting in GREEDY):
        given["temperature"] = 0.0
    try:
        return otherwise.with_request(msgspec.convert(given, SamplingRequest))
    except (msgspec.ValidationError, InvalidArgument) as error:
        raise FailedPrecondition(
            f"{path}: {prefix}*: {error}; correct or remove the field"
        ) from error
