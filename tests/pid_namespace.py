"""PID namespaces, in which a process is the first one, as in a container."""

from __future__ import annotations

import subprocess

import pytest

NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


def _can_unshare() -> bool:
    try:
        tried = subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False)
    except FileNotFoundError:
        return False
    return tried.returncode == 0


needs_namespace = pytest.mark.skipif(
    not _can_unshare(), reason="needs root and unshare --pid --mount-proc"
)
