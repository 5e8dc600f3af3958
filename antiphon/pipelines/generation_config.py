"""A checkpoint's default sampling, from its `generation_config.json`."""

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
"""Hugging Face's names of the settings, which follow the role, and antiphon's names."""

GREEDY = ("do_sample", "dosample")
"""Names of the setting that is false for greedy decoding."""


def default_sampling(model_dir: Path, role: str, otherwise: Sampling) -> Sampling:
    """Return a stage's defaults: the checkpoint's `<role>_<setting>`, else those of `otherwise`.

    The settings are the keys of `SETTINGS` and `GREEDY`, without prefix if `role` is empty. All are
    optional, and so is the file. Raises `FailedPrecondition` for an invalid value.
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
            f"{path}: {prefix}*: {error}; correct it or leave it out"
        ) from error
