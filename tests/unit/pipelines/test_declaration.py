"""A declaration whose parts do not fit together is refused when it is made."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from antiphon.errors import InvalidArgument
from antiphon.pipelines import qwen2_5_omni, qwen3_omni
from antiphon.pipelines.graph import CLIENT, Edge, Pipeline, StageSpec, TensorSpec
from antiphon.values.options import Option, OptionKind

A, B, C = "reader", "singer", "mixer"


def edge(name: str, producer: str, *consumers: str) -> Edge:
    return Edge(name, producer, consumers, "step", (TensorSpec("ids", "int32", (-1,)),), "ids")


GOOD = Pipeline(
    name="choir",
    architectures=("Choir",),
    stages=(StageSpec(A), StageSpec(B), StageSpec(C)),
    edges=(
        edge("input", CLIENT, A),
        edge("notes", A, B),
        edge("voices", B, C),
        edge("audio", C, CLIENT),
    ),
)


def with_edge(at: int, changed: Edge) -> Pipeline:
    edges = list(GOOD.edges)
    edges[at] = changed
    return replace(GOOD, edges=tuple(edges))


def with_options(**options: tuple[Option, ...]) -> Pipeline:
    stages = [replace(each, options=options.get(each.role, ())) for each in GOOD.stages]
    return replace(GOOD, stages=tuple(stages))


LANGUAGE = Option("language", OptionKind.TEXT, "of the song", choices=("la", "it"))
FAULTS: dict[str, tuple[Callable[[], Pipeline], str, str]] = {
    "unknown producer": (
        lambda: with_edge(1, edge("notes", "reeder", B)),
        "edges.notes.producer",
        "unknown stage reeder; use one of: reader, singer, mixer",
    ),
    "unknown consumer": (
        lambda: with_edge(1, edge("notes", A, B, "sinner")),
        "edges.notes.consumers",
        "unknown stage sinner; use one of: reader, singer, mixer",
    ),
    "two edges of one name": (
        lambda: with_edge(2, edge("notes", B, C)),
        "edges",
        "two edges have the name notes",
    ),
    "two stages of one role": (
        lambda: replace(GOOD, stages=(*GOOD.stages, StageSpec(A))),
        "stages",
        "two stages have the role reader",
    ),
    "an edge nobody consumes": (
        lambda: replace(GOOD, edges=(*GOOD.edges, edge("score", A))),
        "edges.score.consumers",
        "has no consumer",
    ),
    "counted by no tensor": (
        lambda: with_edge(1, replace(edge("notes", A, B), counted_by="id")),
        "edges.notes.counted_by",
        "unknown tensor 'id'; use one of: ['ids']",
    ),
    "nothing from the client": (
        lambda: with_edge(0, edge("input", B, A)),
        "edges",
        "no edge has the client as its producer",
    ),
    "nothing to the client": (
        lambda: with_edge(3, edge("audio", C, B)),
        "edges",
        "no edge has the client as a consumer",
    ),
    "a cycle": (
        lambda: replace(GOOD, edges=(*GOOD.edges, edge("echo", C, A))),
        "edges",
        r"the stages (reader -> singer -> mixer -> reader|singer -> mixer -> reader -> singer"
        r"|mixer -> reader -> singer -> mixer) form a cycle",
    ),
    "a stage without input": (
        lambda: replace(
            GOOD, stages=(*GOOD.stages, StageSpec("dog")), edges=(*GOOD.edges, edge("x", "dog", B))
        ),
        "stages.dog",
        "no edge leads to this stage",
    ),
    "a stage without output": (
        lambda: replace(
            GOOD, stages=(*GOOD.stages, StageSpec("dog")), edges=(*GOOD.edges, edge("x", A, "dog"))
        ),
        "stages.dog",
        "no edge starts at this stage",
    ),
    "one option described in two ways": (
        lambda: with_options(
            reader=(LANGUAGE,), singer=(replace(LANGUAGE, description="of the singer"),)
        ),
        "stages.singer.options.language",
        "another stage describes an option with this name differently",
    ),
    "one option of two kinds": (
        lambda: with_options(
            reader=(LANGUAGE,), singer=(Option("language", OptionKind.NUMBER, "of the song"),)
        ),
        "stages.singer.options.language",
        "another stage describes an option with this name differently",
    ),
    "an option that instructs by a number": (
        lambda: with_options(reader=(Option("manner", OptionKind.NUMBER, instructs=True),)),
        "stages.reader.options.manner.instructs",
        "an option that instructs must have the kind TEXT",
    ),
    "one option that instructs and does not": (
        lambda: with_options(reader=(LANGUAGE,), singer=(replace(LANGUAGE, instructs=True),)),
        "stages.singer.options.language",
        "another stage describes an option with this name differently",
    ),
    "two options that instruct": (
        lambda: with_options(
            reader=(Option("manner", OptionKind.TEXT, instructs=True),),
            singer=(Option("mood", OptionKind.TEXT, instructs=True),),
        ),
        "stages",
        "several options instruct: manner, mood",
    ),
    "one option twice": (
        lambda: with_options(reader=(LANGUAGE, replace(LANGUAGE, choices=()))),
        "stages.reader.options.language",
        "two options have this name",
    ),
}


@pytest.mark.parametrize("case", FAULTS)
def test_declaration_is_refused_with_the_field_and_the_reason(case: str) -> None:
    make, field, reason = FAULTS[case]
    pattern = reason if "|" in reason else re.escape(reason)
    with pytest.raises(InvalidArgument, match=f"^pipeline choir: {field}: {pattern}") as refused:
        make()
    assert refused.value.field == field


def test_an_option_of_two_stages_may_have_bounds_of_each() -> None:
    pipeline = with_options(reader=(LANGUAGE,), singer=(replace(LANGUAGE, choices=("la",)),))
    assert pipeline.stage("singer").options[0].choices == ("la",)


@pytest.mark.parametrize("pipeline", [qwen3_omni.PIPELINE, qwen2_5_omni.PIPELINE])
def test_a_token_waits_for_company_less_than_the_frame_lasts_that_speaks_it(
    pipeline: Pipeline,
) -> None:
    tokens, codes = pipeline.edge("tokens"), pipeline.edge("codes")
    assert tokens.consumers == (codes.producer,)
    assert 0 < tokens.pace_s < 1 / codes.rate_hz
