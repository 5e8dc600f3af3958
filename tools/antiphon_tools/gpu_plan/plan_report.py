"""Formats the plan as text, JSON and deployment settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from antiphon_services.stage.engines import VLLM
from antiphon_tools.gpu_plan.sharing import GpuShare, most_positions
from antiphon_tools.gpu_plan.stage_needs import StageNeeds

GIB = 1 << 30
MEGABYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """The stages of a model and, if a GPU size was given, the GPUs.

    `unknown` contains the stages whose requirements are not known.
    """

    model: str
    pipeline: str
    stages: Sequence[StageNeeds]
    unknown: Sequence[str] = ()
    gpu_bytes: int = 0
    gpus: Sequence[GpuShare] = ()

    @property
    def fits(self) -> bool:
        """Whether all stages fit on their GPUs."""
        return all(each.fits for each in self.gpus)


def settings(plan: ModelPlan) -> dict[str, Any]:
    """Return settings for the stages that fit on GPUs, in deployment file format."""
    found: dict[str, Any] = {}
    for number, gpu in enumerate(plan.gpus):
        for stage in gpu.stages if gpu.fits else ():
            own: dict[str, Any] = {"device": f"cuda:{number}", "slots": stage.sessions}
            if stage.position_bytes:
                own["context_limit"] = stage.positions
            if stage.engine == VLLM:
                # Round up, so that vLLM allocates at least the planned memory.
                share = -(-100 * stage.total // plan.gpu_bytes) / 100
                own["engine_args"] = {"gpu_memory_utilization": share}
            found[stage.role] = own
    return {"stages": found}


def as_json(plan: ModelPlan) -> dict[str, Any]:
    """Return the plan in a machine-readable format, with sizes in bytes."""
    told: dict[str, Any] = {
        "model": plan.model,
        "pipeline": plan.pipeline,
        "stages": [
            {**asdict(each), "session_bytes": each.session, "total_bytes": each.total}
            for each in plan.stages
        ],
        "unknown": list(plan.unknown),
    }
    if plan.gpu_bytes:
        told |= {
            "gpu_bytes": plan.gpu_bytes,
            "fits": plan.fits,
            "gpus": [
                {
                    "roles": [each.role for each in gpu.stages],
                    "total_bytes": gpu.total,
                    "fits": gpu.fits,
                    "most_sessions": gpu.most_sessions,
                }
                for gpu in plan.gpus
            ],
            "settings": settings(plan),
        }
    return told


def as_text(plan: ModelPlan) -> str:
    """Return the plan as human-readable text."""
    lines = [f"{plan.model}: {plan.pipeline}", ""]
    head = (
        "stage",
        "engine",
        "weights",
        "workspace",
        "session",
        "sessions",
        "total",
        "host+bounds",
    )
    rows = [head, *(_row(each) for each in plan.stages)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines += [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]
    lines += ["", *map(_about, plan.stages)]
    lines += [f"{role}: the memory usage of this family is unknown" for role in plan.unknown]
    if plan.gpus:
        lines += ["", f"GPUs of {_size(plan.gpu_bytes)}:"]
        lines += [f"  {number}: {_gpu(gpu)}" for number, gpu in enumerate(plan.gpus)]
        if (found := settings(plan))["stages"]:
            lines += ["", "settings:", msgspec.yaml.encode(found).decode().rstrip()]
    return "\n".join(line.rstrip() for line in lines)


def _row(stage: StageNeeds) -> tuple[str, ...]:
    return (
        stage.role,
        stage.engine,
        _size(stage.weights),
        _size(stage.working + stage.shared),
        _size(stage.session),
        str(stage.sessions),
        _size(stage.total),
        f"{_size(stage.host)} + {_size(sum(stage.host_bounds.values()))}",
    )


def _about(stage: StageNeeds) -> str:
    stored = ", ".join(f"{_size(size)} {kind}" for kind, size in sorted(stage.stored.items()))
    length = f"sessions of {stage.positions} positions (at most {stage.most})"
    what = length if stage.position_bytes else "sessions of any length"
    return f"{stage.role}: stored {stored}; computes in {stage.dtype}; {what}"


def _gpu(gpu: GpuShare) -> str:
    names = ", ".join(each.role for each in gpu.stages)
    if gpu.fits:
        most = gpu.most_sessions
        sessions = "any number of sessions fits" if most is None else f"{most} sessions fit"
        return f"{names}: {_size(gpu.total)}; {sessions}"
    # A stage that does not fit never shares its GPU.
    (stage,) = gpu.stages
    if gpu.most_sessions:
        longest = most_positions(stage, gpu.size)
        shorter = f", or {stage.sessions} of {longest} positions" if longest else ""
        remedy = f"{gpu.most_sessions} sessions of this length fit{shorter}"
    elif stage.fixed <= gpu.size and (longest := most_positions(stage, gpu.size)):
        remedy = f"{stage.sessions} sessions of {longest} positions fit"
    else:
        remedy = "use a larger GPU, or the engine vllm on several GPUs"
    return f"{names}: {_size(gpu.total)}, which doesn't fit; {remedy}"


def _size(count: int) -> str:
    """Format a number of bytes in binary units."""
    if count >= GIB:
        return f"{count / GIB:.1f} GiB"
    return f"{count / MEGABYTE:.1f} MiB"
