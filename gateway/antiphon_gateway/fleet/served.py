"""The model as the gateway presents it to clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from antiphon.errors import AntiphonError
from antiphon.values.options import Option
from antiphon_gateway.fleet.fleet import Fleet
from antiphon_gateway.fleet.lineup import Lineup
from antiphon_gateway.outputs import OUTPUTS


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What the stages that are up can do together; `outputs` are empty when that is nothing.

    `sample_rate_hz` is that of produced audio. `sampling_stages` are without the one that reads
    the messages. `aliases` are other names of the model, `voice_aliases` of its voices.
    """

    name: str
    voices: tuple[str, ...]
    outputs: tuple[str, ...]
    sample_rate_hz: int
    input_kinds: tuple[str, ...]
    context_limit: int
    options: tuple[Option, ...]
    sampling_stages: tuple[str, ...]
    reads_aloud: bool
    aliases: tuple[str, ...]
    voice_aliases: Mapping[str, str]


def served_model(fleet: Fleet) -> ServedModel:
    """Return the only model. Raises `Unavailable` until a stage has reported it."""
    name, accepted = fleet.model_name(), fleet.accepted()
    lineup = _largest_lineup(fleet)
    reader = lineup.input_member.description if lineup else None
    voices = lineup.voices if lineup else fleet.voices()
    return ServedModel(
        name=name,
        voices=voices,
        outputs=tuple(sorted(lineup.outputs, reverse=True)) if lineup else (),
        sample_rate_hz=lineup.sample_rate_hz if lineup else 0,
        input_kinds=tuple(reader.input_kinds) if reader else (),
        context_limit=reader.context_limit if reader else 0,
        options=accepted.options,
        sampling_stages=accepted.sampling_stages,
        reads_aloud=reader.reads_aloud if reader else False,
        aliases=tuple(each for each in fleet.names.models if each != name),
        voice_aliases=fleet.names.voice_aliases(voices),
    )


def _largest_lineup(fleet: Fleet) -> Lineup | None:
    for outputs in (
        frozenset[str](),
        *(frozenset({each}) for each in sorted(OUTPUTS, reverse=True)),
    ):
        try:
            return fleet.line_up(outputs)
        except AntiphonError:
            continue
    return None
