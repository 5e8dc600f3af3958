"""The sampling and options that requests may set, as reported by the stages. Pure.

Stages that are not part of a request, or are down, count with their last report.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from antiphon.errors import InvalidArgument, NotImplementedYet, Unavailable
from antiphon.pipelines.graph import CLIENT
from antiphon.v1 import stage_pb2
from antiphon.values.options import Option
from antiphon.values.sampling import INPUT_STAGE, SamplingRequest
from antiphon.wire.options import option_from_proto
from antiphon_gateway.fleet.lineup import Edges, Lineup


@dataclass(frozen=True)
class Accepted:
    """`told` has the last report of each stage that was ever reached, by role."""

    edges: Edges
    told: Mapping[str, stage_pb2.DescribeResponse]

    def of_session(self, lineup: Lineup) -> Accepted:
        """By the very stages of a session; others are asked for what it has no stage for.

        A fleet may hold two builds, which accept different things.
        """
        own = {member.role: member.description for member in lineup.members}
        if own.keys() == self.told.keys() and all(self.told[r] is each for r, each in own.items()):
            return self
        return Accepted(lineup.edges, {**self.told, **own})

    @cached_property
    def roles(self) -> tuple[str, ...]:
        """All stages of the pipeline."""
        ends = (role for edge in self.edges for role in (edge.producer, edge.consumer))
        return tuple(dict.fromkeys(role for role in ends if role != CLIENT))

    @cached_property
    def sampling_stages(self) -> tuple[str, ...]:
        """The stages that sample, without the one that reads the messages."""
        return tuple(r for r in self.roles if r in self.told and self._may_be_given(r))

    @cached_property
    def sampling_fields(self) -> tuple[str, ...]:
        """The fields, and the stages without a report so far."""
        return tuple(filter(self._may_be_given, self.roles))

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """Each option as the first stage that reads it describes it."""
        return tuple(next(iter(each.values())) for each in self._options.values())

    def instructing_option(self) -> str:
        """Return the name of the option that describes the speech in words.

        Raises `NotImplementedYet` if there is none, and `Unavailable` if it is not known yet.
        """
        for option in self.options:
            if option.instructs:
                return option.name
        self._check_heard("instruction")
        raise NotImplementedYet(
            "instruction: this model takes no words on how to speak; leave it out",
            field="instruction",
        )

    def option_readers(self, names: Collection[str]) -> dict[str, dict[str, Option]]:
        """By name, the stages that read an option, with its description by each.

        Raises `InvalidArgument` for a name that no stage knows, `Unavailable` if one may.
        """
        known = self._options if names else {}
        for name in names:
            if name in known:
                continue
            field = f"options.{name}"
            self._check_heard(field)
            there_are = ", ".join(known) or "none"
            raise InvalidArgument(f"{field}: no such option; there are: {there_are}", field=field)
        return {name: known[name] for name in names}

    def check_sampling(self, sampling: Mapping[str, SamplingRequest]) -> None:
        """Raise `InvalidArgument` for settings of a stage that there is not, that does not
        sample, or that has them twice."""
        for stage, request in sampling.items():
            field = f"sampling.{stage}"
            if stage == INPUT_STAGE:
                self._check_reader(request)
            elif stage == self._reader and INPUT_STAGE in sampling:
                raise InvalidArgument(
                    f"{field}: this stage reads the messages, and has its settings as the "
                    "request's own already; give them once",
                    field=field,
                )
            elif stage not in self.roles:
                raise InvalidArgument(f"{field}: no such stage; {self._known}", field=field)
            elif not self._may_sample(stage):
                raise InvalidArgument(
                    f"{field}: this stage does not sample; {self._known}", field=field
                )

    def _check_heard(self, field: str) -> None:
        """Raise `Unavailable` while a stage that may know the field was never reached."""
        if unheard := [role for role in self.roles if role not in self.told]:
            raise Unavailable(
                f"{field}: the stage {unheard[0]}, which may know it, was not reached yet",
                field=field,
                stage=unheard[0],
            )

    @cached_property
    def _options(self) -> dict[str, dict[str, Option]]:
        found: dict[str, dict[str, Option]] = {}
        for role in self.roles:
            told = self.told[role].options if role in self.told else ()
            for option in filter(None, map(option_from_proto, told)):
                found.setdefault(option.name, {})[role] = option
        return found

    @cached_property
    def _reader(self) -> str:
        return next(edge.consumer for edge in self.edges if edge.producer == CLIENT)

    @property
    def _known(self) -> str:
        return f"those that do: {', '.join(self.sampling_stages) or 'none'}"

    def _may_sample(self, role: str) -> bool:
        return role not in self.told or self.told[role].samples

    def _may_constrain(self, role: str) -> bool:
        return role not in self.told or self.told[role].constrains_text

    def _may_be_given(self, role: str) -> bool:
        return role != self._reader and self._may_sample(role)

    def _check_reader(self, request: SamplingRequest) -> None:
        """The seed is for all stages; other settings take a reader that samples."""
        if request.json_schema is not None and not self._may_constrain(self._reader):
            raise NotImplementedYet(
                "json_schema: this model's text cannot be held to a schema as it is served; ask "
                "for the form in a message (a stage with `engine: vllm` can)",
                field="json_schema",
            )
        settings = [name for name in request.given() if name != "seed"]
        if settings and not self._may_sample(self._reader):
            field = settings[0]
            raise InvalidArgument(
                f"{field}: the stage that reads the messages does not sample; {self._known}",
                field=field,
            )
