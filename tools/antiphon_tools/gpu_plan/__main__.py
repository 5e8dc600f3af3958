"""`antiphon plan [MODEL]`: estimate the memory of a model's stages before starting them."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from antiphon.deployment.schema import Deployment, load_deployment
from antiphon.errors import FailedPrecondition
from antiphon_tools.gpu_plan.plan_report import GIB, ModelPlan, as_json, as_text
from antiphon_tools.gpu_plan.sharing import share_gpus
from antiphon_tools.hub.deployment import with_directories
from antiphon_tools.hub.hub_id import HubId
from antiphon_tools.hub.settings import add_hub_options, hub_settings
from antiphon_tools.launcher.plan import application_root, resolve, with_overrides

LARGEST_GPU_GIB = 4096.0


def main(arguments: Sequence[str] | None = None, *, prog: str = "antiphon plan") -> int:
    """Print the plan. Returns 0, or 1 if a stage is too large for a GPU.

    Raises `AntiphonError` if the model or a setting is not supported.
    """
    options = _parser(prog).parse_args(arguments)
    deployment = load_deployment(options.config) if options.config else Deployment()
    if options.model:
        deployment = msgspec.structs.replace(deployment, model=options.model)
    deployment = with_overrides(deployment, options.stage)
    with tempfile.TemporaryDirectory(prefix="antiphon-plan-") as headers:
        is_remote = HubId.read(deployment.model) is not None
        local = with_directories(deployment, hub_settings(options), Path(headers))
        try:
            plan = _plan(local, options)
        except FailedPrecondition as error:
            if not is_remote or headers not in error.message:
                raise
            raise FailedPrecondition(
                f"{deployment.model}: the hub only provides the sizes of safetensors files, and "
                "not all weights are stored in this format: "
                f"{error.message.replace(headers, '').lstrip('/')}; download the model once "
                "(with `antiphon serve`), and use its directory"
            ) from error
    print(json.dumps(as_json(plan), indent=2) if options.json else as_text(plan))
    return 0 if plan.fits else 1


def _plan(deployment: Deployment, options: argparse.Namespace) -> ModelPlan:
    # This imports torch, which is not required for the help text.
    from antiphon_tools.gpu_plan.asked_stages import stage_needs

    deployment, pipeline = resolve(deployment, application_root(gateway=False))
    folder = Path(deployment.model)
    size = round(options.gpu_memory * GIB) if options.gpu_memory else 0
    stages, unknown = [], []
    for role in pipeline.roles:
        config = deployment.stage(role)
        if size and not config.device.startswith("cuda"):
            config = msgspec.structs.replace(config, device="cuda")
        needs = stage_needs(
            pipeline, role, folder, config, sessions=options.sessions, positions=options.context
        )
        if needs is None:
            unknown.append(role)
        else:
            stages.append(needs)
    name = deployment.model_name or folder.name
    gpus = share_gpus(stages, size) if size else ()
    return ModelPlan(name, pipeline.name, stages, unknown, size, gpus)


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        usage=f"{prog} [MODEL] [OPTION ...]",
        description=(
            "Computes the memory of a model's stages from its configuration and the headers of "
            "its weights."
        ),
    )
    add = parser.add_argument
    add(
        "model",
        nargs="?",
        metavar="MODEL",
        help=("checkpoint directory, or ORG/NAME on the hub (default: the demonstration model)"),
    )
    add("--config", type=Path, metavar="FILE", help="deployment file")
    add("--stage", action="append", default=[], metavar="ROLE.KEY=VALUE", help="override a setting")
    add("--gpu-memory", type=_gibibytes, metavar="GIB", help="assume GPUs with this much memory")
    add("--sessions", type=_count, metavar="N", help="number of sessions per stage (slots)")
    add("--context", type=_count, metavar="N", help="number of positions per session (8192)")
    add("--json", action="store_true", help="print JSON, with sizes in bytes")
    add_hub_options(parser)
    return parser


def _gibibytes(text: str) -> float:
    value = float(text)
    if not 0 < value <= LARGEST_GPU_GIB:
        raise argparse.ArgumentTypeError(f"{text}: must be above 0 and at most {LARGEST_GPU_GIB:g}")
    return value


def _count(text: str) -> int:
    if not (text.isdecimal() and 0 < int(text) <= 1 << 24):
        raise argparse.ArgumentTypeError(f"{text}: must be a positive number")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
