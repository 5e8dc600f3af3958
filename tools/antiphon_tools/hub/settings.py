"""The endpoint, token and cache of a hub, and the corresponding command-line options.

The defaults are taken from the environment variables of huggingface_hub: HF_ENDPOINT, HF_TOKEN,
HF_HOME, HF_HUB_CACHE and HF_HUB_OFFLINE.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO


@dataclass(frozen=True, slots=True)
class HubSettings:
    """Settings for access to a hub.

    `revision` applies to the model that is given on the command line. If it is empty, the revision
    in the model's ID is used.
    """

    revision: str = ""
    token: str = ""
    cache: Path | None = None
    offline: bool = False
    endpoint: str = ""
    stream: TextIO | None = None
    """The stream for progress output. Defaults to standard error."""

    @property
    def cache_dir(self) -> Path:
        """The directory that huggingface_hub uses as its cache."""
        from huggingface_hub import constants

        return (self.cache or Path(constants.HF_HUB_CACHE)).expanduser().resolve()

    @property
    def url(self) -> str:
        """The address of the hub, without a trailing slash."""
        from huggingface_hub import constants

        return (self.endpoint or constants.ENDPOINT).rstrip("/")

    @property
    def is_offline(self) -> bool:
        """Whether only the cache is used."""
        from huggingface_hub import constants

        return self.offline or constants.HF_HUB_OFFLINE

    @property
    def output(self) -> TextIO:
        """The stream for progress output."""
        return self.stream or sys.stderr


def add_hub_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for commands that accept a model of the hub."""
    hub = parser.add_argument_group("models on the Hugging Face hub")
    hub.add_argument("--revision", default="", metavar="NAME", help="branch, tag or commit (main)")
    hub.add_argument("--token", default="", help="access token ($HF_TOKEN)")
    hub.add_argument("--cache", type=Path, metavar="DIR", help="cache folder ($HF_HOME/hub)")
    hub.add_argument(
        "--offline", action="store_true", help=("only use the cache, without downloading")
    )


def hub_settings(options: argparse.Namespace) -> HubSettings:
    """Return the settings from the options that `add_hub_options` added."""
    return HubSettings(options.revision, options.token, options.cache, options.offline)
