"""`python -m antiphon_tools.images`: build the images or print the commands."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence

from antiphon_tools.images.commands import IMAGES, ROOT, ImageBuild, commands


def main(argv: Sequence[str] | None = None) -> int:
    """Run the commands until one of them fails and return the exit status."""
    asked = _parser().parse_args(argv)
    dry_run = asked.dry_run
    given = {name: value for name, value in vars(asked).items() if name != "dry_run"}
    try:
        lines = commands(ImageBuild(**given))
    except ValueError as error:
        print(f"images: {error}", file=sys.stderr)
        return 2
    for line in lines:
        print(shlex.join(line), flush=True)
        if not dry_run and (status := subprocess.run(line, cwd=ROOT, check=False).returncode):
            return status
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="images", description="Builds the container images.")
    parser.add_argument("--base", required=True, help="python:3.11-slim@sha256:...")
    parser.add_argument("--builder", default="docker", help="docker (default) or buildah")
    parser.add_argument(
        "--images", type=_words, default=IMAGES, help=(f"images to build: {' '.join(IMAGES)}")
    )
    parser.add_argument("--registry", default="", help="prefix of the image names")
    parser.add_argument(
        "--tag",
        default="dev",
        help=("tag of the images, to which the variant is appended (default: dev)"),
    )
    parser.add_argument(
        "--torch-index-url",
        default="",
        help=("package index with CPU builds of torch, for stage-cpu"),
    )
    parser.add_argument(
        "--gateway-extras",
        type=_words,
        default=(),
        help=('extras of the gateway image, such as "tracing av"'),
    )
    parser.add_argument(
        "--stage-extras",
        type=_words,
        default=(),
        help=('extras of the stage images, such as "tracing vision"'),
    )
    parser.add_argument("--push", action="store_true", help="push the built images to the registry")
    parser.add_argument("--dry-run", action="store_true", help="only print the commands")
    return parser


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.replace(",", " ").split())


if __name__ == "__main__":
    sys.exit(main())
