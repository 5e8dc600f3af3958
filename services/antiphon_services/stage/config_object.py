"""The base class for configurations that are read from `config.json` in the same way as in
transformers, but without importing transformers.

Importing `transformers.PreTrainedConfig` takes 1.3 s of CPU time and 27 MB, because transformers
lists all of its models and all installed packages. A subclass declares the fields that a stage
reads, with the same names, types and defaults as in transformers. Tests compare each class with its
counterpart in transformers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, dataclass_transform

from huggingface_hub.dataclasses import strict

_EXTENDED_ROPES = ("llama3", "longrope", "yarn")
_ROPE_NEEDS: Mapping[str, frozenset[str]] = {
    "linear": frozenset({"factor"}),
    "dynamic": frozenset({"factor"}),
    "yarn": frozenset({"factor"}),
    "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor"}),
}


class ReadsConfig(Protocol):
    """A configuration class, either from this package or from transformers."""

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any]) -> Any:
        """Create a configuration from an object of `config.json`."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name."""


@dataclass_transform(kw_only_default=True)
class ConfigObject:
    """An object of `config.json`. Fields that the class doesn't declare become attributes.

    Subclasses become dataclasses whose fields only accept values of the annotated type. Any other
    type raises `StrictDataclassFieldValidationError`. The module of a subclass must not postpone
    the evaluation of annotations.

    If the class declares `rope_parameters`, the object describes a rotary embedding. Its parameters
    are converted to the current layout: `rope_scaling`, `rope_theta` and `type` are older names.
    """

    aliases: ClassVar[Mapping[str, str]] = {}
    """Maps alternative field names to the declared names."""
    default_theta: ClassVar[float] = 10_000.0
    default_rope_type: ClassVar[str] = "default"
    if TYPE_CHECKING:
        rope_parameters: dict[str, Any] | None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        strict(accept_kwargs=True)(dataclasses.dataclass(kw_only=True, repr=False)(cls))

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any]) -> Self:
        """Create a configuration from an object. Raises the same errors as `ConfigObject` and
        `validate_rope`.
        """
        return cls(**config_dict)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields under their declared names. Tuples are converted to lists."""
        return {name: _plain(value) for name, value in vars(self).items()}

    def __post_init__(self, **others: Any) -> None:
        if "rope_parameters" in _field_names(self):
            self.rope_parameters = self._rope(others)
        for name, value in others.items():
            setattr(self, self.aliases.get(name, name), value)

    def __getattr__(self, name: str) -> Any:
        # Python only calls this method if there is no such attribute.
        if name in self.aliases:
            return getattr(self, self.aliases[name])
        raise AttributeError(f"{type(self).__name__} has no field {name}")

    def standardize_rope_params(self) -> None:
        """Do nothing, because the parameters are already in the current layout.

        The functions in `transformers.modeling_rope_utils` call this method.
        """

    def validate_rope(self) -> None:
        """Raise `ValueError` if the rotary embedding's parameters are missing or nested, or if its
        width is odd.
        """
        rope = vars(self).get("rope_parameters")
        if not rope:
            return
        if nested := sorted(name for name, each in rope.items() if isinstance(each, Mapping)):
            raise ValueError(
                f"rope_parameters: {nested[0]} is an object; use the same values for all layers"
            )
        missing = _ROPE_NEEDS.get(rope["rope_type"], frozenset()) - rope.keys()
        if missing:
            raise ValueError(f"rope_parameters: {rope['rope_type']} requires {sorted(missing)}")
        width = vars(self).get("head_dim")
        if isinstance(width, int) and width % 2:
            raise ValueError(f"head_dim is {width}; it must be even for a rotary embedding")

    def validate_layer_types(self) -> None:
        """Raise `ValueError` if `layer_types` doesn't have an entry for every layer."""
        kinds, layers = vars(self).get("layer_types"), vars(self).get("num_hidden_layers")
        if kinds is not None and layers is not None and len(kinds) != layers:
            raise ValueError(f"layer_types contains {len(kinds)} of {layers} layers")

    def _rope(self, others: dict[str, Any]) -> dict[str, Any]:
        """Return the rotary embedding's parameters in the current layout.

        Fields that older configurations store elsewhere are removed from `others`.
        """
        rope = dict(others.pop("rope_scaling", None) or self.rope_parameters or {})
        rope.setdefault("rope_theta", others.pop("rope_theta", self.default_theta))
        if (rotated := others.get("partial_rotary_factor")) is not None:
            rope.setdefault("partial_rotary_factor", rotated)
        rope.setdefault("rope_type", rope.get("type", "default"))
        if rope["rope_type"] == "default":
            rope["rope_type"] = self.default_rope_type
        if rope["rope_type"] in _EXTENDED_ROPES:
            rope.setdefault("original_max_position_embeddings", self.max_position_embeddings)
        return rope


def _field_names(config: Any) -> set[str]:
    return {each.name for each in dataclasses.fields(config)}


def _plain(value: Any) -> Any:
    if isinstance(value, ConfigObject):
        return value.to_dict()
    return [_plain(each) for each in value] if isinstance(value, tuple) else value
