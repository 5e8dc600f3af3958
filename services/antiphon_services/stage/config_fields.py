"""Declares how a stage treats each field of a checkpoint's `config.json`; unsupported ones are
rejected.

A loader declares the fields of every object that it reads: those that it supports with any value,
those that it supports with some values only, and those without influence on inference. transformers
ignores fields that its classes do not declare, and so does a loader, which logs their names.
`docs/checkpoint-fields.md` lists the declarations.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig

from antiphon.errors import FailedPrecondition, shortened

_log = logging.getLogger(__name__)

Values = tuple[object, ...]


def names(text: str) -> frozenset[str]:
    """Return the field names in a text, separated by white space."""
    return frozenset(text.split())


# What transformers 4.57 and 5.19 write into every object, and training settings.
ALWAYS_IDLE = names(
    "_attn_implementation_autoset _name_or_path add_cross_attention architectures "
    "attention_dropout auto_map bad_words_ids begin_suppress_tokens bos_token_id "
    "chunk_size_feed_forward cross_attention_hidden_size decoder_start_token_id "
    "diversity_penalty do_sample dtype early_stopping encoder_no_repeat_ngram_size "
    "eos_token_id exponential_decay_length_penalty finetuning_task forced_bos_token_id "
    "forced_eos_token_id id2label ignore_index init_std initializer_range is_decoder "
    "is_encoder_decoder label2id length_penalty max_length min_length model_type "
    "no_repeat_ngram_size num_beam_groups num_beams num_return_sequences output_attentions "
    "output_hidden_states output_router_logits output_scores pad_token_id prefix problem_type "
    "pruned_heads remove_invalid_values repetition_penalty return_dict "
    "return_dict_in_generate router_aux_loss_coef sep_token_id suppress_tokens "
    "task_specific_params temperature tf_legacy_loss tie_encoder_decoder tokenizer_class "
    "top_k top_p torch_dtype torchscript transformers_version typical_p use_bfloat16 "
    "use_cache "
)

# Quantization is detected from tensors: `antiphon.runtime.checkpoint.quantization`.
TOLD_BY_TENSORS = names("quantization_config quantization")

OFF: Values = (None, False)
NONE_LISTED: Values = (None, [])
NO_WINDOW: Values = (None, "full_attention")
FULL_ATTENTION, SLIDING_ATTENTION = "full_attention", "sliding_attention"

# Frequencies that are independent of the sequence's length, so that one table has all positions.
STATIC_ROPES: Values = ("default", "linear", "llama3", "yarn")
PLAIN_ROPE: Values = ("default",)

# Not declared by every class, and supported by no stage. A checkpoint that enables one was made for
# other code.
FOREIGN: Mapping[str, Values] = {
    "attention_bias": OFF,
    "attn_logit_softcapping": OFF,
    "final_logit_softcapping": OFF,
    "layer_types": NO_WINDOW,
    "mlp_bias": OFF,
    "partial_rotary_factor": (None, 1, 1.0),
    "sliding_window": (None,),
    "use_sliding_window": OFF,
}


@dataclass(frozen=True, slots=True)
class ConfigPart:
    """The fields of one object at `path` ("code_config.text_config", "" for the whole file).

    `computed` are supported with any value. `only` are restricted to the listed values. `idle` have
    no influence on this stage. `ropes` are the supported rotary embedding types, if the object
    describes one. A part whose attention may have a `window` is checked by `check_window`. A part
    whose module is Hugging Face's `own` supports all fields of that class.
    """

    path: str
    computed: frozenset[str] = frozenset()
    only: Mapping[str, Values] = field(default_factory=dict)
    idle: frozenset[str] = frozenset()
    ropes: Values = ()
    window: bool = False
    own: type[PreTrainedConfig] | None = None

    @property
    def stated(self) -> frozenset[str]:
        """All fields with a declaration, except `ALWAYS_IDLE`."""
        known = self.computed | self.only.keys() | self.idle
        return known | self.rope_fields | self.window_fields | self.own_fields

    @property
    def own_fields(self) -> frozenset[str]:
        """The fields declared by the class of Hugging Face's own module."""
        return declared_fields(self.own) if self.own else frozenset()

    @property
    def rope_fields(self) -> frozenset[str]:
        """The fields that describe the rotary embedding."""
        names = ("rope_parameters", "rope_scaling", "rope_theta")
        return frozenset(names) if self.ropes else frozenset()

    @property
    def window_fields(self) -> frozenset[str]:
        """The fields that select the layers with a window, and its width."""
        names = ("layer_types", "max_window_layers", "sliding_window", "use_sliding_window")
        return frozenset(names) if self.window else frozenset()

    @property
    def required(self) -> Mapping[str, Values]:
        """The values that fields must have."""
        foreign = {name: each for name, each in FOREIGN.items() if name not in self.stated}
        return {**foreign, **self.only}


def declared_fields(config_class: type[PreTrainedConfig]) -> frozenset[str]:
    """Return the fields of a transformers class, except those in `ALWAYS_IDLE`."""
    made = config_class().to_dict().keys()  # type: ignore[no-untyped-call, unused-ignore]
    return frozenset(made) - ALWAYS_IDLE - {"_output_attentions"}


def check_fields(file: Path, config: Mapping[str, Any], parts: Sequence[ConfigPart]) -> None:
    """Raise `FailedPrecondition` with field, value and remedy for unsupported values.

    `config` is the content of `file`. Missing objects are skipped; the code that needs one reports
    it.
    """
    for part in parts:
        given = _at(config, part.path)
        if given is None:
            continue
        for name, values in part.required.items():
            unused = name == "sliding_window" and given.get("use_sliding_window") is False
            if name in given and not unused and not _allowed(given[name], values):
                raise _refused(file, part.path, name, given[name], values)
        _check_rope(file, part, given)
        known = part.stated | ALWAYS_IDLE | TOLD_BY_TENSORS | part.required.keys()
        unknown = sorted(given.keys() - known)
        if unknown:
            where = f"{part.path}: " if part.path else ""
            _log.warning("%s: %sfields without effect: %s", file, where, ", ".join(unknown))


def check_window(file: Path, path: str, config: Any, positions: int, *, limited: str) -> None:
    """Raise `FailedPrecondition` unless every layer sees all of `positions` positions.

    `config` is the object as parsed by transformers. A window of at least `positions`, the
    `context_limit` of the stage `limited`, hides nothing.
    """
    kinds = set(config.layer_types)
    if foreign := kinds - {FULL_ATTENTION, SLIDING_ATTENTION}:
        kind = sorted(foreign)[0]
        raise _refused(file, path, "layer_types", kind, (FULL_ATTENTION, SLIDING_ATTENTION))
    window = config.sliding_window
    if SLIDING_ATTENTION in kinds and window is not None and window < positions:
        raise FailedPrecondition(
            f"{file}: {path}.sliding_window is {window}, and this stage attends to all of its "
            f"{positions} positions; set {limited}.context_limit to {window} at most, or take a "
            "checkpoint without a window"
        )


def _check_rope(file: Path, part: ConfigPart, given: Mapping[str, Any]) -> None:
    for name in ("rope_parameters", "rope_scaling"):
        rope = given.get(name)
        if not part.ropes or not isinstance(rope, Mapping):
            continue
        kind = rope.get("rope_type", rope.get("type", "default"))
        # The former name of three-axis positions.
        if kind not in (*part.ropes, "mrope"):
            raise _refused(file, part.path, f"{name}.rope_type", kind, part.ropes)
        factor = rope.get("partial_rotary_factor", 1)
        if factor != 1:
            raise _refused(file, part.path, f"{name}.partial_rotary_factor", factor, (1,))


def _at(config: Mapping[str, Any], path: str) -> Mapping[str, Any] | None:
    """Return the object at the path; None if there is none."""
    found: Any = config
    for name in path.split(".") if path else ():
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else None


def _allowed(value: object, values: Values) -> bool:
    """Return whether the value, or each value of a list, is one of the values."""
    if isinstance(value, list) and value:
        return all(_allowed(each, values) for each in value)
    return any(_same(value, each) for each in values)


def _same(value: object, other: object) -> bool:
    """Compare values, with true and 1 different."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _refused(
    file: Path, path: str, name: str, value: object, values: Sequence[object]
) -> FailedPrecondition:
    known = " or ".join(dict.fromkeys(_shown(each) for each in values if each is not None))
    where = f"{path}.{name}" if path else name
    return FailedPrecondition(
        f"{file}: {where} is {shortened(_shown(value), 80)}; this stage computes only "
        f"{known or 'without it'}; take a checkpoint without that, or another engine"
    )


def _shown(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return value
        case _:
            return repr(value)
