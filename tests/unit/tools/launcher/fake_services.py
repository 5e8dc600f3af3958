"""Tiny programs in the place of the services, and a model directory without a model."""

from __future__ import annotations

import json
import os
import select
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from antiphon_tools.launcher.plan import EMBEDDED_MODEL

ROLES = ("thinker", "talker", "code2wav")
EXIT_WAIT_S = 120

_HEAD = """
import json, os, signal, subprocess, sys
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
announce = os.fdopen(int(options["--announce-fd"]), "w")
def say(**event):
    print(json.dumps(event), file=announce, flush=True)
"""
STAGE = """
metrics = options.get("--metrics-listen", "").replace(":0", ":9")
host, _, port = options["--listen"].rpartition(":")
host = host.replace("localhost", "127.0.0.1")
say(event="listening", address=f"{host}:{int(port) or 1000 + os.getpid()}", metrics=metrics)
print("weights loaded")
say(event="ready", seconds=0.5)
signal.pause()
"""
GATEWAY = """
print(open(options["--config"]).read())
say(event="listening", http="127.0.0.1:8000", grpc="127.0.0.1:9000")
say(event="ready", seconds=0.1)
signal.pause()
"""
# It stops as one that drains: not before the stages had their chance to go first.
DRAINING_GATEWAY = GATEWAY.replace(
    "signal.pause()",
    """
import re, select
config = open(options["--config"]).read()
ports = re.findall(r"addresses:\\s+- 127.0.0.1:(\\d+)", config)
handles = [os.pidfd_open(int(port) - 1000) for port in ports]
def drain(*_):
    print(len(handles), "stages,", len(select.select(handles, [], [], 1)[0]), "gone")
    sys.exit(0)
signal.signal(signal.SIGTERM, drain)
say(event="ready", seconds=0.1)
while True: signal.pause()
""",
).replace('say(event="ready", seconds=0.1)\n\n', "\n")
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN)" + STAGE.replace(
    "signal.pause()", "\nwhile True: signal.pause()"
)


# `python -m antiphon_services ROLE`: runs the fake of that role, which finds its arguments as
# usual.
_ENTRY_POINT = """
import runpy, sys
runpy.run_module(f"antiphon_services.{sys.argv.pop(1)}", run_name="__main__")
"""


@dataclass(frozen=True)
class Checkout:
    """A directory with `services`, `gateway` and `model`."""

    root: Path

    @property
    def model(self) -> Path:
        return self.root / "model"

    def embed(self) -> Path:
        """Make room for the model that is served when none is named; where it goes."""
        path = self.root / EMBEDDED_MODEL
        path.parent.mkdir(parents=True)
        return path

    def write(self, name: str, program: str) -> None:
        """Put a program in the place of a service."""
        package = self.root / "services" / "antiphon_services" / name
        if name == "gateway":
            package = self.root / "gateway" / "antiphon_gateway"
        package.mkdir(parents=True, exist_ok=True)
        # Regular packages, which the path of the real checkout does not add to.
        for folder in {package, self.root.joinpath(*package.relative_to(self.root).parts[:2])}:
            (folder / "__init__.py").touch()
        (package / "__main__.py").write_text(_HEAD + program)
        if name != "gateway":
            (package.parent / "__main__.py").write_text(_ENTRY_POINT)


def make_checkout(root: Path) -> Checkout:
    """One whose services all work."""
    checkout = Checkout(root)
    for role in ROLES:
        checkout.write(role, STAGE)
    checkout.write("gateway", GATEWAY)
    checkout.model.mkdir()
    config = {"architectures": ["Qwen3OmniMoeForConditionalGeneration"]}
    (checkout.model / "config.json").write_text(json.dumps(config))
    return checkout


class Pids:
    """Processes that are to end: opened while they live, so that no id is reused."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._handles = {pid: os.pidfd_open(pid) for pid in pids}

    def left(self, timeout_s: float = EXIT_WAIT_S) -> set[int]:
        """Those that still run when all have ended or time is up."""
        left = set()
        for pid, handle in self._handles.items():
            if not select.select([handle], [], [], timeout_s)[0]:
                left.add(pid)
            os.close(handle)
        return left
