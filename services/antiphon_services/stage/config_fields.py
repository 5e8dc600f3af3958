"""Declares how a stage treats each field of a checkpoint's `config.json`, so that unsupported
values can be rejected.

For every object that it reads, a loader declares three groups of fields: those that it supports
with any value, those that it supports with certain values only, and those that don't affect
inference. Any other field is ignored and its name is logged, because transformers also ignores
fields that its classes don't declare. `docs/checkpoint-fields.md` lists all declarations.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from antiphon.errors import FailedPrecondition, shortened
from antiphon_services.stage.config_object import ReadsConfig

_log = logging.getLogger(__name__)

Values = tuple[object, ...]


def names(text: str) -> frozenset[str]:
    """Split text into field names, which are separated by white space."""
    return frozenset(text.split())


# Fields that transformers 4.57 and 5.19 write to every object, and training settings.
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

# Quantization is detected from the tensors instead (`antiphon.runtime.checkpoint.quantization`).
TOLD_BY_TENSORS = names("quantization_config quantization")

LAYER_SIZES = names(
    "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads "
    "num_key_value_heads hidden_act max_position_embeddings rms_norm_eps"
)
"""The language model fields that all versions of Qwen have in common."""

OFF: Values = (None, False)
NONE_LISTED: Values = (None, [])
NO_WINDOW: Values = (None, "full_attention")
FULL_ATTENTION, SLIDING_ATTENTION = "full_attention", "sliding_attention"

# Types of rotary embeddings whose frequencies don't depend on the sequence length, so that a single
# table can contain all positions.
STATIC_ROPES: Values = ("default", "linear", "llama3", "yarn")
PLAIN_ROPE: Values = ("default",)

# Fields that only some classes declare and that no stage supports. If a checkpoint enables one of
# them, it was made for different code.
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
    """The fields of the object at `path`, such as "code_config.text_config". The path of the file's
    top-level object is "".

    Fields in `computed` are supported with any value, and fields in `only` are restricted to the
    listed values. Fields in `idle` have no effect on this stage. If the object describes a rotary
    embedding, `ropes` contains the supported types. If `window` is true, attention may be limited
    to a window, which `check_window` validates. If Hugging Face's own module implements this part,
    `own` is its configuration class, and all fields of this class are supported.
    """

    path: str
    computed: frozenset[str] = frozenset()
    only: Mapping[str, Values] = field(default_factory=dict)
    idle: frozenset[str] = frozenset()
    ropes: Values = ()
    window: bool = False
    own: type[ReadsConfig] | None = None

    @property
    def stated(self) -> frozenset[str]:
        """All declared fields, except for those in `ALWAYS_IDLE`."""
        known = self.computed | self.only.keys() | self.idle
        return known | self.rope_fields | self.window_fields | self.own_fields

    @property
    def own_fields(self) -> frozenset[str]:
        """The fields declared by the configuration class of Hugging Face's own module."""
        return declared_fields(self.own) if self.own else frozenset()

    @property
    def rope_fields(self) -> frozenset[str]:
        """The fields that describe the rotary embedding."""
        names = ("rope_parameters", "rope_scaling", "rope_theta")
        return frozenset(names) if self.ropes else frozenset()

    @property
    def window_fields(self) -> frozenset[str]:
        """The fields that determine which layers have an attention window, and the width of this
        window.
        """
        names = ("layer_types", "max_window_layers", "sliding_window", "use_sliding_window")
        return frozenset(names) if self.window else frozenset()

    @property
    def required(self) -> Mapping[str, Values]:
        """The values that fields must have."""
        foreign = {name: each for name, each in FOREIGN.items() if name not in self.stated}
        return {**foreign, **self.only}


def declared_fields(config_class: type[ReadsConfig]) -> frozenset[str]:
    """Return the fields of a configuration class, except for those in `ALWAYS_IDLE`."""
    made = config_class().to_dict().keys()
    return frozenset(made) - ALWAYS_IDLE - {"_output_attentions"}


def check_fields(file: Path, config: Mapping[str, Any], parts: Sequence[ConfigPart]) -> None:
    """Raise `FailedPrecondition` if a value is not supported. The error names the field and its
    value. It also suggests a remedy.

    `config` is the content of `file`. Missing objects are skipped, because the code that needs them
    reports that they are missing.
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
            _log.warning("%s: %signored fields: %s", file, where, ", ".join(unknown))


def check_window(file: Path, path: str, config: Any, positions: int, *, limited: str) -> None:
    """Raise `FailedPrecondition` unless every layer can attend to all `positions` positions.

    `config` is the object after transformers has parsed it. `positions` is the `context_limit` of
    the stage `limited`. A window of at least this length has no effect, so it is accepted.
    """
    kinds = set(config.layer_types)
    if foreign := kinds - {FULL_ATTENTION, SLIDING_ATTENTION}:
        kind = sorted(foreign)[0]
        raise _refused(file, path, "layer_types", kind, (FULL_ATTENTION, SLIDING_ATTENTION))
    window = config.sliding_window
    if SLIDING_ATTENTION in kinds and window is not None and window < positions:
        raise FailedPrecondition(
            f"{file}: {path}.sliding_window is {window}, but this stage attends to all "
            f"{positions} positions; set {limited}.context_limit to at most {window}, or use a "
            "checkpoint without a sliding window"
        )


def _check_rope(file: Path, part: ConfigPart, given: Mapping[str, Any]) -> None:
    for name in ("rope_parameters", "rope_scaling"):
        rope = given.get(name)
        if not part.ropes or not isinstance(rope, Mapping):
            continue
        kind = rope.get("rope_type", rope.get("type", "default"))
        # The former name for the default type with positions on three axes.
        former = ("mrope",) if "default" in part.ropes else ()
        if kind not in (*part.ropes, *former):
            raise _refused(file, part.path, f"{name}.rope_type", kind, part.ropes)
        factor = rope.get("partial_rotary_factor", 1)
        if factor != 1:
            raise _refused(file, part.path, f"{name}.partial_rotary_factor", factor, (1,))


def _at(config: Mapping[str, Any], path: str) -> Mapping[str, Any] | None:
    """Return the object at this path, or None if it doesn't exist."""
    found: Any = config
    for name in path.split(".") if path else ():
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else None


def _allowed(value: object, values: Values) -> bool:
    """Return whether the value is allowed. A list is allowed if all of its elements are."""
    if isinstance(value, list) and value:
        return all(_allowed(each, values) for each in value)
    return any(_same(value, each) for each in values)


def _same(value: object, other: object) -> bool:
    """Return whether two values are equal. Unlike in Python, `True` is different from 1."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _refused(
    file: Path, path: str, name: str, value: object, values: Sequence[object]
) -> FailedPrecondition:
    known = " or ".join(dict.fromkeys(_shown(each) for each in values if each is not None))
    where = f"{path}.{name}" if path else name
    return FailedPrecondition(
        f"{file}: {where} is {shortened(_shown(value), 80)}, but this stage only supports "
        f"{known or 'checkpoints without it'}; use another checkpoint or another engine"
    )


def _shown(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return value
        case _:
            return repr(value)
