"""Only the payload folder, and the settings, know which transports there are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from antiphon.deployment.stage_config import TransportName
from antiphon.transport.payload.registry import FALLBACK, TRANSPORTS

ROOT = Path(__file__).parents[1]
PACKAGES = ("antiphon", "gateway", "services", "testkit")
FOLDER = "antiphon/transport/payload"
GENERATED = "antiphon/v1"
SETTINGS = "antiphon/deployment/stage_config.py"
# What links may import of the folder: the table and what is in it.
PUBLIC = {"registry", "transport"}
# Where "grpc" can be nothing but a transport; clients have an endpoint of that name.
WITHOUT_ENDPOINTS = (
    "antiphon/runtime",
    "testkit/antiphon_testkit",
    "antiphon/transport",
    "services",
)

_NAMES = {name for row in TRANSPORTS.values() for name in row.names}
_NAME = re.compile(rf"\b({'|'.join(sorted(_NAMES - FALLBACK.names))})\b")
_FALLBACK = re.compile(rf"""["']({"|".join(FALLBACK.names)})["']""")
_MODULE = re.compile(rf"{FOLDER.replace('/', '.')}(?:\.(\w+)| import (.+))")


def _sources() -> Iterator[tuple[str, str]]:
    """Path and text of every file that people write, outside the folder and the settings."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            place = path.relative_to(ROOT).as_posix()
            if not place.startswith((FOLDER, GENERATED)) and place != SETTINGS:
                yield place, path.read_text()


def _known(place: str, text: str) -> set[str]:
    """The transports and their modules that a file speaks of."""
    known = set(_NAME.findall(text))
    if place.startswith(WITHOUT_ENDPOINTS):
        known |= set(_FALLBACK.findall(text))
    for module, names in _MODULE.findall(text):
        known |= ({module} if module else set(re.findall(r"\w+", names))) - PUBLIC
    return known


def test_no_other_file_knows_a_transport() -> None:
    assert not {place: known for place, text in _sources() if (known := _known(place, text))}


@pytest.mark.parametrize(
    ("place", "planted", "found"),
    [
        ("antiphon/transport/link/outgoing/planted.py", 'if name == "gloo":', {"gloo"}),
        ("antiphon/runtime/server/planted.py", "# nccl is slow here", {"nccl"}),
        ("gateway/antiphon_gateway/planted.py", 'skip = ("shared_memory",)', {"shared_memory"}),
        ("antiphon/transport/link/incoming/planted.py", 'transport = "grpc"', {"grpc"}),
        (
            "antiphon/runtime/server/planted.py",
            "from antiphon.transport.payload.framed import FramedSender",
            {"framed"},
        ),
        ("antiphon/load/planted.py", "from antiphon.transport.payload import slab", {"slab"}),
    ],
)
def test_planted_knowledge_is_found(place: str, planted: str, found: set[str]) -> None:
    assert _known(place, planted) == found


def test_settings_may_name_every_transport_and_no_other() -> None:
    assert get_args(TransportName) == ("auto", *TRANSPORTS)
