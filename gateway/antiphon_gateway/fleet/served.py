"""The model as clients of the gateway see it."""

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
    """The combined capabilities of all running stages. If they can't serve any request, `outputs`
    is empty.

    `sample_rate_hz` is the sample rate of the generated audio. `sampling_stages` doesn't include
    the stage that reads the messages. `aliases` contains additional names for the model, and
    `voice_aliases` maps additional names to voices.
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
    """Return the served model. Raises `Unavailable` if no stage has reported it yet."""
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
