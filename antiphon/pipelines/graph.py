"""The declaration of a model family.

A declaration lists the stages and edges and specifies how a checkpoint is recognized. It is a
frozen value named `PIPELINE`, which `registry.py` finds. The code of each stage is the function
`load` in the module `<package>.<role>.load`. Model architectures are not listed anywhere else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import numpy as np

from antiphon.deployment.stage_config import FilesConfig
from antiphon.errors import DataLoss, FailedPrecondition, InvalidArgument, NotFound
from antiphon.pipelines.examples import Example
from antiphon.pipelines.files import CONFIG_FILE
from antiphon.values.chunk import Tensor, Tensors
from antiphon.values.options import Option, OptionKind
from antiphon.values.segment import ChunkPolicy, Delivery

CLIENT = ""
"""The name of the client if it is the producer or a consumer of an edge."""

SAMPLE = "sample"
"""The unit of edges that carry playable audio. The sample rate is that of the producing stage."""

VARIES = -1

# A steeper ramp wouldn't save any decoder time, and it causes underruns if frames are generated
# slowly (benchmarks/RESULTS.md).
DEFAULT_CHUNK_POLICY = ChunkPolicy(first=1, ramp=(1, 2, 3, 4, 6, 8), steady=12)


@lru_cache
def _name_of(dtype: np.dtype) -> str:
    """Return the name of a dtype.

    The result is cached, because NumPy computes the name again on every access, which would happen
    for every chunk.
    """
    return dtype.name


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A named tensor of an edge. Dimensions that are `VARIES` in `shape` may differ between chunks.

    `dtype` is the name that numpy uses, or "bfloat16". It is empty if the checkpoint determines the
    dtype.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    optional: bool = False

    def admits(self, tensor: Tensor) -> bool:
        """Return whether a tensor has the declared dtype and shape.

        A tensor without elements is allowed only if it has no rows.
        """
        if tensor.ndim != len(self.shape) or self.dtype not in ("", _name_of(tensor.dtype)):
            return False
        for size, declared in zip(tensor.shape, self.shape, strict=True):
            if declared not in (VARIES, size):
                return False
        return tensor.size > 0 or not len(tensor)


@dataclass(frozen=True, slots=True)
class Edge:
    """A named output of a stage or of the client, together with the stages that consume it.

    `unit` is the unit in which positions on this edge are counted. `counted_by` is the name of the
    tensor whose length along axis 0 is the number of positions.

    A `grouped` edge follows the segment's chunk policy. On all other edges, output is sent as soon
    as it is available. Every tensor of a grouped edge must have one row per position. Send all
    other tensors as priming output. On a `governed` edge, the consumer's credit limits the output,
    and the producer's engine must respect `held`. `pace_s` is the minimum interval between chunks
    of a segment, in seconds. It applies to edges that are neither grouped nor governed. Output that
    is produced earlier is sent with the next chunk. `rate_hz` is the number of positions per second
    of audio. It is 0 if the edge carries no audio or the checkpoint determines the rate. If an edge
    is `primed`, its consumer can be primed, as described in `Emitted`. `look_ahead` is the number
    of positions that the consumer needs in addition to the positions that it decodes. Every chunk
    of a grouped edge therefore ends that many positions later, so that the consumer can decode
    complete groups.
    """

    name: str
    producer: str
    consumers: tuple[str, ...]
    unit: str
    tensors: tuple[TensorSpec, ...]
    counted_by: str
    delivery: Delivery = Delivery.STREAM
    grouped: bool = False
    governed: bool = False
    pace_s: float = 0.0
    rate_hz: float = 0.0
    primed: bool = False
    look_ahead: int = 0

    def __post_init__(self) -> None:
        if self.look_ahead and not self.grouped:
            raise FailedPrecondition(f"{self.name}: look_ahead can't be used with a grouped edge")
        if self.primed and CLIENT in self.consumers:
            raise FailedPrecondition(f"{self.name}: a client cannot be primed")

    def check(self, tensors: Tensors) -> None:
        """Raise `DataLoss` if a declared tensor has a different dtype or shape."""
        for spec in self.tensors:
            tensor = tensors.get(spec.name)
            if tensor is not None and not spec.admits(tensor):
                raise DataLoss(
                    f"{self.name}: {spec.name} is {tensor.dtype.name} {list(tensor.shape)}, but "
                    f"must be {spec.dtype or 'numbers'} {list(spec.shape)}",
                    edge=self.name,
                )


TORCH_ONLY = ("torch",)
TORCH_OR_VLLM = ("torch", "vllm")


@dataclass(frozen=True, slots=True)
class StageSpec:
    """A stage of a pipeline.

    `samples` states whether the stage samples. Requests can only set the sampling settings of a
    stage that does. If a stage receives the client's input and `reads_aloud` is true, it speaks a
    single user message verbatim instead of answering a conversation. `example` generates input for
    load tests. If `dtype` is set, it is the only supported dtype. If it is empty, the deployment
    can choose. `engines` are the names that the setting `engine` can have, in addition to `auto`.
    If it is empty, only the stage itself checks the name.
    """

    role: str
    samples: bool = False
    reads_aloud: bool = False
    options: tuple[Option, ...] = ()
    example: Example | None = None
    dtype: str = ""
    engines: tuple[str, ...] = ()

    def with_options(self, options: Iterable[Option]) -> StageSpec:
        """Return a copy of the stage in which the given options replace those of the same name.

        Raises `FailedPrecondition` if an option hasn't been declared, because the gateway wouldn't
        know about it.
        """
        better = {option.name: option for option in options}
        if unknown := sorted(better.keys() - {option.name for option in self.options}):
            raise FailedPrecondition(
                f"{self.role}: the checkpoint describes the options {', '.join(unknown)}, which "
                "are not declared by the pipeline; add them to StageSpec.options of the stage"
            )
        return replace(self, options=tuple(better.get(each.name, each) for each in self.options))


@dataclass(frozen=True, slots=True)
class Variant:
    """A kind of checkpoint that contains only the given `roles`.

    It is recognized by a `field` in its `config.json` that is false. `lacks` describes the feature
    that is missing.
    """

    field: str
    roles: tuple[str, ...]
    lacks: str


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """The layout of a checkpoint. It specifies which files the stages read. Only these files are
    downloaded.

    Each of the `folders` contains a configuration, tokenizer files, and weights in the format that
    `runtime.checkpoint.weights` chooses. The checkpoint's own directory is `""`. `others` are
    patterns for further paths, in which `*` also matches `/`. If a layout has a `marker`, it
    applies only to checkpoints that contain this file. `required` are paths that a repository might
    lack, even though its stages can't load without them. Their `source` is the address to get them
    from.
    """

    folders: tuple[str, ...] = ("",)
    others: tuple[str, ...] = ()
    marker: str = ""
    required: tuple[str, ...] = ()
    source: str = ""

    def check_required(self, paths: Collection[str], prefix: str = "") -> None:
        """Raise `FailedPrecondition` if one of the `required` files isn't among these paths.

        The message begins with `prefix`.
        """
        if missing := " and ".join(each for each in self.required if each not in paths):
            raise FailedPrecondition(
                f"{prefix}{missing} not found, without which the model can't be loaded; copy "
                f"{missing} from {self.source} to a directory with the model, and use this "
                "directory"
            )


@dataclass(frozen=True, slots=True)
class Companion:
    """An additional repository that is needed for every checkpoint of a family.

    `hub_id` is its ID on the Hugging Face Hub. `setting` is the name of the setting for its
    directory in a stage's `files`. `folder` is the name of its directory if a checkpoint includes
    it.
    """

    hub_id: str
    setting: str
    folder: str

    def directory(self, model_dir: Path, files: FilesConfig) -> Path:
        """Return the directory of the repository.

        If the setting is empty, the directory is searched for under the name `folder`, both inside
        the model's directory and next to it. Raises `FailedPrecondition` if the directory has no
        `config.json`.
        """
        if configured := getattr(files, self.setting):
            tried = [Path(configured)]
        else:
            tried = [model_dir / self.folder, model_dir.resolve().parent / self.folder]
        for folder in tried:
            if (folder / CONFIG_FILE).is_file():
                return folder
        field = f"files.{self.setting}"
        raise FailedPrecondition(
            f"{field}: no {CONFIG_FILE} found in {' or '.join(map(str, tried))}; set it to the "
            f"directory of {self.folder}",
            field=field,
        )


@dataclass(frozen=True)
class Pipeline:
    """A model family.

    `architectures` contains the values in `config.json` that identify its checkpoints. Some
    checkpoints may be of a `variant` that has fewer stages. A checkpoint without a `config.json` is
    recognized by the file `marker`. If `needs` is not empty, it contains the names of weight files
    or their indexes, and a checkpoint must contain the weights of at least one of them. If it does,
    the pipeline is chosen over another one that has the same architecture and doesn't need any of
    them. A model on the hub counts as a checkpoint without weights. The layout of a checkpoint is
    the first entry of `files` whose marker it contains. Raises `InvalidArgument`, with the name of
    the field, if the declaration is inconsistent.
    """

    name: str
    architectures: tuple[str, ...]
    stages: tuple[StageSpec, ...]
    edges: tuple[Edge, ...]
    # The package that contains the stages' code. If it is empty, the package is
    # `antiphon_services.<name>`.
    folder: str = ""
    chunk_policy: ChunkPolicy = DEFAULT_CHUNK_POLICY
    marker: str = ""
    needs: tuple[str, ...] = ()
    variant: Variant | None = None
    files: tuple[CheckpointFiles, ...] = (CheckpointFiles(),)
    companions: tuple[Companion, ...] = ()

    def __post_init__(self) -> None:
        for field, fault in _faults(self):
            raise InvalidArgument(f"pipeline {self.name}: {field}: {fault}", field=field)

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles of all stages."""
        return tuple(stage.role for stage in self.stages)

    def stage(self, role: str) -> StageSpec:
        """Return the stage with this role."""
        return next(stage for stage in self.stages if stage.role == role)

    def with_options(self, role: str, options: Iterable[Option]) -> Pipeline:
        """Return a copy of the pipeline in which options of one stage are replaced.

        `StageSpec.with_options` describes which options can be replaced.
        """
        described = self.stage(role).with_options(options)
        stages = tuple(described if each.role == role else each for each in self.stages)
        return replace(self, stages=stages)

    def of_checkpoint(self, config: Mapping[str, object]) -> Pipeline:
        """Return the pipeline for a checkpoint with this `config.json`.

        It contains only the stages of this checkpoint and their edges.
        """
        variant = self.variant
        if variant is None or config.get(variant.field) is not False:
            return self
        there = {CLIENT, *variant.roles}
        kept = (
            replace(edge, consumers=tuple(each for each in edge.consumers if each in there))
            for edge in self.edges
            if edge.producer in there
        )
        return replace(
            self,
            stages=tuple(stage for stage in self.stages if stage.role in variant.roles),
            edges=tuple(edge for edge in kept if edge.consumers),
        )

    def check_role(self, role: str, model: str) -> None:
        """Raise `InvalidArgument` if the family, or this `model`, has no stage with this role."""
        if role in self.roles:
            return
        lacks = ""
        if self.variant is not None and self.roles == self.variant.roles:
            lacks = f" ({model} {self.variant.lacks}: {self.variant.field} is false)"
        raise InvalidArgument(
            f"pipeline {self.name} has no stage {role}{lacks}; its stages are "
            f"{', '.join(self.roles)}"
        )

    @property
    def package(self) -> str:
        """The package that contains one subpackage for each stage."""
        return self.folder or f"antiphon_services.{self.name}"

    @cached_property
    def _by_name(self) -> dict[str, Edge]:
        return {edge.name: edge for edge in self.edges}

    def edge(self, name: str) -> Edge:
        """Return the edge with this name. Raises `NotFound` if there is no such edge."""
        try:
            return self._by_name[name]
        except KeyError:
            known = ", ".join(self._by_name)
            raise NotFound(
                f"pipeline {self.name} has no edge {name!r}; its edges are {known}"
            ) from None

    def inputs(self, role: str) -> tuple[Edge, ...]:
        """Return the edges that a stage consumes."""
        return tuple(edge for edge in self.edges if role in edge.consumers)

    def steps_to_client(self, role: str) -> int:
        """Return the number of edges on the longest path from a stage to the client."""
        return 1 + max(
            0 if consumer == CLIENT else self.steps_to_client(consumer)
            for edge in self.outputs(role)
            for consumer in edge.consumers
        )

    def outputs(self, role: str) -> tuple[Edge, ...]:
        """Return the edges that a stage produces."""
        return tuple(edge for edge in self.edges if edge.producer == role)


def _faults(pipeline: Pipeline) -> Iterator[tuple[str, str]]:
    """Yield each inconsistency in a declaration as a pair that consists of a field name and a
    sentence.
    """
    for role in _repeated(pipeline.roles):
        yield "stages", f"two stages have the role {role}; give each stage its own role"
    for name in _repeated(edge.name for edge in pipeline.edges):
        yield "edges", f"two edges have the name {name}; give each edge its own name"
    for edge in pipeline.edges:
        for field, fault in _edge_faults(edge, pipeline.roles):
            yield f"edges.{edge.name}.{field}", fault
    for role in pipeline.roles:
        if not pipeline.inputs(role):
            yield f"stages.{role}", "no edge leads to this stage; add one, or remove the stage"
        if not pipeline.outputs(role):
            yield f"stages.{role}", "no edge starts at this stage; add one, or remove the stage"
    if all(edge.producer != CLIENT for edge in pipeline.edges):
        yield (
            "edges",
            ("no edge has the client as its producer, so no stage receives the request; add one"),
        )
    if all(CLIENT not in edge.consumers for edge in pipeline.edges):
        yield (
            "edges",
            ("no edge has the client as a consumer, so the client receives no answer; add one"),
        )
    if circle := _circle(pipeline):
        yield "edges", f"the stages {' -> '.join(circle)} form a cycle; remove one of the edges"
    options: dict[str, Option] = {}
    for stage in pipeline.stages:
        for name in _repeated(option.name for option in stage.options):
            yield f"stages.{stage.role}.options.{name}", "two options have this name; remove one"
        for option in stage.options:
            first = options.setdefault(option.name, option)
            # The limits can differ, because a checkpoint may define the limits of one stage more
            # precisely.
            if _meaning(option) != _meaning(first):
                yield (
                    f"stages.{stage.role}.options.{option.name}",
                    "another stage describes an option with this name differently; use the same "
                    "kind and description, or rename one of them",
                )
            if option.instructs and option.kind is not OptionKind.TEXT:
                yield (
                    f"stages.{stage.role}.options.{option.name}.instructs",
                    "an option that instructs must have the kind TEXT",
                )
    if len(instructing := [each.name for each in options.values() if each.instructs]) > 1:
        yield "stages", f"several options instruct: {', '.join(instructing)}; only one of them may"


def _meaning(option: Option) -> tuple[object, ...]:
    return option.kind, option.description, option.instructs


def _edge_faults(edge: Edge, roles: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    named = [("producer", edge.producer), *(("consumers", each) for each in edge.consumers)]
    for field, role in named:
        if role not in (CLIENT, *roles):
            yield field, f"unknown stage {role}; use one of: {', '.join(roles)}"
    if not edge.consumers:
        yield "consumers", "has no consumer; add a stage or the client, or remove the edge"
    tensors = [spec.name for spec in edge.tensors]
    if edge.counted_by not in tensors:
        yield "counted_by", f"unknown tensor {edge.counted_by!r}; use one of: {tensors}"


def _repeated(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def _circle(pipeline: Pipeline) -> list[str]:
    """Return the roles of stages that form a cycle, with producers first.

    If there is no cycle, the list is empty.
    """
    producers = {
        role: {edge.producer for edge in pipeline.inputs(role)} - {CLIENT}
        for role in pipeline.roles
    }
    try:
        TopologicalSorter(producers).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []
