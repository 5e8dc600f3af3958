"""Describes the code and the machine, because results depend on both."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

from antiphon.errors import FailedPrecondition
from antiphon.version import VERSION
from antiphon_tools.launcher.plan import application_root, is_installed

GIT_TIMEOUT_S = 10.0


def machine() -> dict[str, str]:
    """Return the code's version and commit, and a description of the machine."""
    named = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    return {"antiphon": VERSION, "commit": commit(), "machine": named}


def load_average() -> str:
    """Return the system load averaged over 1, 5 and 15 minutes."""
    return ", ".join(f"{each:.2f}" for each in os.getloadavg())


def processor() -> str:
    """Return the name of the processor that the kernel reports in /proc (Linux)."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown processor"
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return "unknown processor"


def commit() -> str:
    """Return the commit of the services' code, followed by "+" if there are uncommitted changes."""
    try:
        root = application_root()
        if is_installed(root):
            return f"antiphon {VERSION}"
        known = _git(root, "rev-parse", "--short=12", "HEAD")
        return known + ("+" if _git(root, "status", "--porcelain") else "")
    except (FailedPrecondition, OSError, subprocess.SubprocessError):
        return "unknown: not in a checkout"


def _git(root: Path, *arguments: str) -> str:
    command = ("git", "-C", str(root), *arguments)
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=GIT_TIMEOUT_S)
    return ran.stdout.strip()
