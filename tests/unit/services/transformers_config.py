"""Compares configuration objects with those of transformers."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig

from antiphon_services.stage.config_object import ConfigObject

BASE = frozenset(PreTrainedConfig().to_dict())
"""Fields of every class of transformers; no stage reads them."""


def compare(made: ConfigObject, expected: PreTrainedConfig) -> None:
    """Assert that all fields of a model have equal values, with those that no class declares."""
    theirs = {name: getattr(expected, name) for name in expected.to_dict() if name not in BASE}
    assert {name: _plain(getattr(made, name)) for name in theirs} == {
        name: _plain(each) for name, each in theirs.items()
    }
    others = set(made.to_dict()) - BASE - theirs.keys() - set(expected.attribute_map)
    assert not others
    for name, part in vars(made).items():
        if isinstance(part, ConfigObject):
            compare(part, getattr(expected, name))


def _plain(value: Any) -> Any:
    if isinstance(value, ConfigObject | PreTrainedConfig):
        return None
    return list(value) if isinstance(value, tuple) else value
