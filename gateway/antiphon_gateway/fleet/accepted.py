"""The sampling settings and options that can be set in requests, as reported by the stages.

If a stage is down or isn't part of a request, its most recent description is used. This module
performs no I/O.
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
    """The settings that can be set in requests. `told` maps each role to the most recent
    description of its stage. Stages that have never been reached are missing.
    """

    edges: Edges
    told: Mapping[str, stage_pb2.DescribeResponse]

    def of_session(self, lineup: Lineup) -> Accepted:
        """Return the settings that apply to a session, using the descriptions of the session's own
        stages.

        These can differ from those of the fleet during an upgrade, when two builds are running.
        Stages that aren't part of the session keep their current descriptions.
        """
        own = {member.role: member.description for member in lineup.members}
        if own.keys() == self.told.keys() and all(self.told[r] is each for r, each in own.items()):
            return self
        return Accepted(lineup.edges, {**self.told, **own})

    @cached_property
    def roles(self) -> tuple[str, ...]:
        """The roles of all stages in the pipeline."""
        ends = (role for edge in self.edges for role in (edge.producer, edge.consumer))
        return tuple(dict.fromkeys(role for role in ends if role != CLIENT))

    @cached_property
    def sampling_stages(self) -> tuple[str, ...]:
        """The stages whose sampling is configured by name. The stage that reads the messages isn't
        included, because it uses the settings of the request itself.
        """
        return tuple(r for r in self.roles if r in self.told and self._may_be_given(r))

    @cached_property
    def sampling_fields(self) -> tuple[str, ...]:
        """The stages that can be named in `sampling`. This includes stages that haven't been
        reached yet.
        """
        return tuple(filter(self._may_be_given, self.roles))

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """The available options. If several stages read an option, the first stage's description is
        used.
        """
        return tuple(next(iter(each.values())) for each in self._options.values())

    def instructing_option(self) -> str:
        """Return the name of the option that describes how the model should speak.

        Raises `NotImplementedYet` if there is no such option, and `Unavailable` if a stage that
        might have one hasn't been reached yet.
        """
        for option in self.options:
            if option.instructs:
                return option.name
        self._check_heard("instruction")
        raise NotImplementedYet(
            "instruction: this model can't be instructed how to speak; leave it out",
            field="instruction",
        )

    def option_readers(self, names: Collection[str]) -> dict[str, dict[str, Option]]:
        """Return the stages that read each of the named options. The result maps option names to
        roles, and roles to the stage's own description of the option.

        Raises `InvalidArgument` if an option doesn't exist, and `Unavailable` if a stage that might
        support it hasn't been reached yet.
        """
        known = self._options if names else {}
        for name in names:
            if name in known:
                continue
            field = f"options.{name}"
            self._check_heard(field)
            there_are = ", ".join(known) or "none"
            raise InvalidArgument(f"{field}: unknown option; available: {there_are}", field=field)
        return {name: known[name] for name in names}

    def check_sampling(self, sampling: Mapping[str, SamplingRequest]) -> None:
        """Raise `InvalidArgument` if there are settings for a stage that doesn't exist or doesn't
        sample. Also raise it if a stage's settings are given twice.
        """
        for stage, request in sampling.items():
            field = f"sampling.{stage}"
            if stage == INPUT_STAGE:
                self._check_reader(request)
            elif stage == self._reader and INPUT_STAGE in sampling:
                raise InvalidArgument(
                    f"{field}: this stage reads the messages, so its sampling is set by the "
                    "request's own fields; set each value only once",
                    field=field,
                )
            elif stage not in self.roles:
                raise InvalidArgument(f"{field}: unknown stage; {self._known}", field=field)
            elif not self._may_sample(stage):
                raise InvalidArgument(
                    f"{field}: this stage doesn't sample; {self._known}", field=field
                )

    def _check_heard(self, field: str) -> None:
        """Raise `Unavailable` if a stage that might support the field hasn't been reached yet."""
        if unheard := [role for role in self.roles if role not in self.told]:
            raise Unavailable(
                f"{field}: the stage {unheard[0]}, which may support it, has not been reached yet",
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
        return f"stages that sample: {', '.join(self.sampling_stages) or 'none'}"

    def _may_sample(self, role: str) -> bool:
        return role not in self.told or self.told[role].samples

    def _may_constrain(self, role: str) -> bool:
        return role not in self.told or self.told[role].constrains_text

    def _may_be_given(self, role: str) -> bool:
        return role != self._reader and self._may_sample(role)

    def _check_reader(self, request: SamplingRequest) -> None:
        """Check the settings for the stage that reads the messages. If this stage doesn't sample,
        only the seed can be set, because it applies to all stages.
        """
        if request.json_schema is not None and not self._may_constrain(self._reader):
            raise NotImplementedYet(
                "json_schema: with the current engine, this model's text can't be restricted to "
                "a schema; describe the form in a message, or serve the stage with `engine: "
                "vllm`",
                field="json_schema",
            )
        settings = [name for name in request.given() if name != "seed"]
        if settings and not self._may_sample(self._reader):
            field = settings[0]
            raise InvalidArgument(
                f"{field}: the stage that reads the messages doesn't sample; {self._known}",
                field=field,
            )
