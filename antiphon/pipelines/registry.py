"""Finds pipelines in this package and in other distributions.

A distribution publishes a family as an entry point of the group `antiphon.pipelines`. The name of
the entry point is the name of the pipeline. For example, its `pyproject.toml` contains:

    [project.entry-points."antiphon.pipelines"]
    band = "band.pipeline:PIPELINE"

`Pipeline.folder` is the package that contains its stages. If an entry point cannot be used, or if
two pipelines have the same name or architecture, an error is raised only when they are requested.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import antiphon.pipelines
from antiphon.errors import AntiphonError, FailedPrecondition, NotFound
from antiphon.pipelines.files import CONFIG_FILE, REMEDY, has_weights, read_config
from antiphon.pipelines.graph import Pipeline

GROUP = "antiphon.pipelines"


@dataclass(frozen=True, slots=True)
class Declaration:
    """The name of a pipeline and where its declaration comes from.

    If the declaration can't be used, `fault` contains the reason.
    """

    name: str
    source: str | EntryPoint
    pipeline: Pipeline | None = None
    fault: str = ""

    @property
    def origin(self) -> str:
        """The origin to show in error messages, which is either a module or a distribution with its
        entry point.
        """
        if isinstance(self.source, str):
            return self.source
        value = self.source.value
        return f"{self.source.dist.name} ({value})" if self.source.dist else value

    def require(self) -> Pipeline:
        """Return the pipeline. Raises `FailedPrecondition` if it can't be used."""
        if self.pipeline is None:
            raise FailedPrecondition(
                f"pipeline {self.name}: {self.origin} can't be used: {self.fault}; repair this "
                "distribution, or install another version of it"
            )
        return self.pipeline


def own_pipelines() -> dict[str, Pipeline]:
    """Return the pipelines of this package, by name."""
    return {each.name: each.require() for each in _own_declarations()}


def identifying_files() -> tuple[str, ...]:
    """Return the names of the files that identify the pipeline of a checkpoint without weights.

    A checkpoint does not have to contain all of them.
    """
    markers = {each.pipeline.marker for each in _declarations() if each.pipeline} - {""}
    return (CONFIG_FILE, *sorted(markers))


def pipeline_named(name: str) -> Pipeline:
    """Return the pipeline with this name.

    Raises `NotFound` if there is no such pipeline. The error lists the known names. Raises
    `FailedPrecondition` if the pipeline can't be used or the name is ambiguous.
    """
    declarations = _declarations()
    named = [each for each in declarations if each.name == name]
    if not named:
        known = sorted(each.name for each in declarations)
        raise NotFound(
            f"unknown pipeline {name!r}; use one of: {', '.join(known)}", field="pipeline"
        )
    if len(named) > 1:
        raise FailedPrecondition(
            f"two pipelines have the name {name}: {_listed(named)}; uninstall one of them"
        )
    return named[0].require()


def pipeline_for(model_dir: Path, name: str = "", *, by_weights: bool = True) -> Pipeline:
    """Return the pipeline with the given name, reduced to the stages of the checkpoint.

    If the name is empty, the checkpoint determines the pipeline, as described in `pipeline_of`.
    Raises the same errors as `pipeline_named` and `pipeline_of`.
    """
    if not name:
        return pipeline_of(model_dir, by_weights=by_weights)
    pipeline = pipeline_named(name)
    varies = pipeline.variant is not None and (model_dir / CONFIG_FILE).is_file()
    return pipeline.of_checkpoint(read_config(model_dir)) if varies else pipeline


def pipeline_of(model_dir: Path, *, by_weights: bool = True) -> Pipeline:
    """Return the pipeline for a checkpoint directory, reduced to the stages of the checkpoint.

    A pipeline matches if the directory contains its `marker`, or if the `config.json` lists one of
    its architectures and the directory contains weights that it `needs`. If `by_weights` is false,
    only `identifying_files` are used, as if there were no weights. The result for a model on the
    hub then doesn't depend on what has been downloaded. Raises `NotFound` if neither file exists.
    Raises `FailedPrecondition` if there is not exactly one match.
    """
    declarations = _declarations()
    marked = [
        each
        for each in declarations
        if each.pipeline and each.pipeline.marker and (model_dir / each.pipeline.marker).is_file()
    ]
    if marked:
        return _only(marked, model_dir, "its files").require()
    config_path = model_dir / CONFIG_FILE
    if not config_path.is_file():
        raise NotFound(f"{model_dir}: not a checkpoint directory: {config_path.name} is missing")
    config = read_config(model_dir)
    architectures = config.get("architectures")
    if not isinstance(architectures, list):
        raise FailedPrecondition(f"{config_path}: architectures must be a list of names; {REMEDY}")
    claims = [
        each
        for each in declarations
        if each.pipeline and any(name in architectures for name in each.pipeline.architectures)
    ]
    claims = _with_weights(claims, model_dir if by_weights else None)
    if not claims:
        raise FailedPrecondition(
            f"{model_dir}: no pipeline supports the architectures {architectures}; "
            f"{_known_architectures(declarations)}"
        )
    claim = _only(claims, model_dir, f"the architectures {architectures}")
    return claim.require().of_checkpoint(config)


def _with_weights(claims: Sequence[Declaration], model_dir: Path | None) -> list[Declaration]:
    """Return the pipelines that need weights that are in the directory.

    If there are none, or if the directory is None, the pipelines that don't need any weights are
    returned. If there aren't any of these either, all pipelines are returned, because loading
    reports which file is missing.
    """
    needs = {each.name: each.pipeline.needs for each in claims if each.pipeline}
    there = [
        each
        for each in claims
        if model_dir and any(has_weights(model_dir / name) for name in needs[each.name])
    ]
    return there or [each for each in claims if not needs[each.name]] or list(claims)


def _only(claims: Sequence[Declaration], model_dir: Path, what: str) -> Declaration:
    """Return the only pipeline that matches a checkpoint.

    Raises `FailedPrecondition` if there are several.
    """
    if len(claims) > 1:
        raise FailedPrecondition(
            f"{model_dir}: two pipelines support {what}: {_listed(claims)}; set `pipeline` in "
            "the deployment to one of them, or uninstall one",
            field="pipeline",
        )
    return claims[0]


def _known_architectures(declarations: Sequence[Declaration]) -> str:
    """Return the known architectures, and the declarations that cannot be used, as text."""
    known = sorted(
        name for each in declarations if each.pipeline for name in each.pipeline.architectures
    )
    broken = [f"{each.origin} can't be used: {each.fault}" for each in declarations if each.fault]
    return "; ".join([f"known: {known}", *broken])


def _listed(declarations: Sequence[Declaration]) -> str:
    return " and ".join(f"{each.name} of {each.origin}" for each in declarations)


def _declarations() -> list[Declaration]:
    return [*_own_declarations(), *map(_elsewhere, entry_points(group=GROUP))]


def _own_declarations() -> Iterator[Declaration]:
    for entry in pkgutil.iter_modules(
        antiphon.pipelines.__path__, f"{antiphon.pipelines.__name__}."
    ):
        pipeline = getattr(importlib.import_module(entry.name), "PIPELINE", None)
        if isinstance(pipeline, Pipeline):
            yield Declaration(pipeline.name, entry.name, pipeline)


def _elsewhere(entry: EntryPoint) -> Declaration:
    """Load the declaration of an entry point.

    If its module raises an exception, this exception is stored as `fault`.
    """
    try:
        pipeline = entry.load()
    except AntiphonError as error:
        return Declaration(entry.name, entry, fault=error.message)
    except Exception as error:
        return Declaration(entry.name, entry, fault=f"{type(error).__name__}: {error}")
    if not isinstance(pipeline, Pipeline):
        return Declaration(
            entry.name, entry, fault=f"it is a {type(pipeline).__name__} instead of a Pipeline"
        )
    if pipeline.name != entry.name:
        fault = f"its name is {pipeline.name}, but the entry point's is {entry.name}"
        return Declaration(entry.name, entry, fault=fault)
    return Declaration(entry.name, entry, pipeline)
