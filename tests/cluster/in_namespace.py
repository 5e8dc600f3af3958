"""Runs a module in a network namespace: `python -m tests.cluster.in_namespace NAME MODULE ...`."""

from __future__ import annotations

import ctypes
import os
import runpy
import sys
from pathlib import Path

CLONE_NEWNET = 0x40000000
NAMESPACES = Path("/run/netns")


def enter(name: str) -> None:
    """Move this process there. Raises `OSError`."""
    libc = ctypes.CDLL(None, use_errno=True)
    with (NAMESPACES / name).open() as namespace:
        if libc.setns(namespace.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {name}")


if __name__ == "__main__":
    enter(sys.argv[1])
    sys.argv = sys.argv[2:]
    # As `python -m` has it: the module's folder is not looked in, the working directory is.
    sys.path.insert(0, os.getcwd())
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
