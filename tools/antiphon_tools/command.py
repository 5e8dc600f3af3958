"""The `antiphon` command, which is installed with the server's distribution.

Each subcommand is a separate module, which is only imported when it runs. This means that commands
such as `antiphon load` and `antiphon keys` don't require torch.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from antiphon.early_stop import end_on_early_stop
from antiphon.errors import AntiphonError
from antiphon.version import VERSION
from antiphon_tools.launcher.first_process import STOP_SIGNALS, fork_if_first


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand and its one-line description.

    The function has the signature `(arguments, *, prog) -> exit status`.
    """

    module: str
    function: str
    purpose: str

    def load(self) -> Callable[..., int]:
        """Import and return the function."""
        found: Callable[..., int] = getattr(importlib.import_module(self.module), self.function)
        return found


COMMANDS = {
    "serve": Command("antiphon_tools.launcher.__main__", "serve", "serve a model on this machine"),
    "stage": Command("antiphon_services.__main__", "serve_stage", "run one stage of a model"),
    "gateway": Command("antiphon_gateway.__main__", "main", "run the gateway"),
    "keys": Command("antiphon_gateway.keys.command", "keys_command", "create API keys"),
    "demo": Command(
        "antiphon_tools.demo.__main__", "main", "start the demonstration model and talk to it"
    ),
    "load": Command("antiphon_tools.load.__main__", "main", "run a load test of one service"),
    "plan": Command(
        "antiphon_tools.gpu_plan.__main__", "main", "compute the memory that a model's stages need"
    ),
    "sizing": Command(
        "antiphon_tools.sizing.__main__", "main", "compute the replicas, GPUs and costs for a load"
    ),
    "chaos": Command(
        "antiphon_tools.chaos.__main__", "main", "inject faults into a fleet and check the answers"
    ),
    "verify": Command(
        "antiphon_tools.verify_release.__main__",
        "main",
        "compare a released checkpoint with its reference",
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    name, rest = (given[0], given[1:]) if given else ("--help", [])
    if name in ("-h", "--help"):
        print(usage())
        return 0
    if name in ("-V", "--version"):
        print(f"antiphon {VERSION}")
        return 0
    if name not in COMMANDS:
        print(f"antiphon: unknown command {name!r}\n\n{usage()}", file=sys.stderr)
        return 2
    # The imports of a command take a second or more. As PID 1, it would ignore SIGTERM.
    if name == "serve":
        fork_if_first(STOP_SIGNALS)
    else:
        end_on_early_stop()
    try:
        return COMMANDS[name].load()(rest, prog=f"antiphon {name}")
    except AntiphonError as error:
        print(f"antiphon {name}: {error.message}", file=sys.stderr)
        return 2


def usage() -> str:
    """Return the help text, which lists all commands."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {each.purpose}" for name, each in COMMANDS.items()]
    return "\n".join(
        (
            "usage: antiphon COMMAND [--help] ...",
            "",
            *lines,
            "",
            "To print the version, use `antiphon --version`.",
            "For the options of a command, use `antiphon COMMAND --help`.",
        )
    )
