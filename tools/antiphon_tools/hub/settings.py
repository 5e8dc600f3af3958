"""Endpoint, token and cache of a hub, with their command-line options.

Defaults come from huggingface_hub's environment variables: HF_ENDPOINT, HF_TOKEN, HF_HOME,
HF_HUB_CACHE and HF_HUB_OFFLINE.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO


@dataclass(frozen=True, slots=True)
class HubSettings:
    """`revision` is that of the model named on the command line; empty: the model's own."""

    revision: str = ""
    token: str = ""
    cache: Path | None = None
    offline: bool = False
    endpoint: str = ""
    stream: TextIO | None = None
    """Where progress is shown; None: standard error."""

    @property
    def cache_dir(self) -> Path:
        """The folder that huggingface_hub calls its cache."""
        from huggingface_hub import constants

        return (self.cache or Path(constants.HF_HUB_CACHE)).expanduser().resolve()

    @property
    def url(self) -> str:
        """The hub's address, without a slash at its end."""
        from huggingface_hub import constants

        return (self.endpoint or constants.ENDPOINT).rstrip("/")

    @property
    def is_offline(self) -> bool:
        """Whether the cache alone is read."""
        from huggingface_hub import constants

        return self.offline or constants.HF_HUB_OFFLINE

    @property
    def output(self) -> TextIO:
        """The stream of progress."""
        return self.stream or sys.stderr


def add_hub_options(parser: argparse.ArgumentParser) -> None:
    """The options of a command whose model may be the hub's."""
    hub = parser.add_argument_group("models of the Hugging Face hub")
    hub.add_argument("--revision", default="", metavar="NAME", help="branch, tag or commit (main)")
    hub.add_argument("--token", default="", help="access token ($HF_TOKEN)")
    hub.add_argument("--cache", type=Path, metavar="DIR", help="cache folder ($HF_HOME/hub)")
    hub.add_argument("--offline", action="store_true", help="read the cache alone")


def hub_settings(options: argparse.Namespace) -> HubSettings:
    """What `add_hub_options` parsed."""
    return HubSettings(options.revision, options.token, options.cache, options.offline)
