"""Addresses of this machine that no other process of tests listens on.

Pods have fixed ports, so what they listen on is told apart by address.
"""

from __future__ import annotations

import itertools
import os

_numbers = itertools.count(1)


def own_address() -> str:
    """The next of this process's addresses in 127.64.0.0/10, which are 254."""
    number = next(_numbers)
    if number > 254:
        raise RuntimeError("this process has had all of its addresses")
    return _address(number)


def process_address() -> str:
    """An address of this process that `own_address` does not return."""
    return _address(255)


def _address(number: int) -> str:
    pid = os.getpid()
    return f"127.{64 + (pid >> 8) % 64}.{pid & 255}.{number}"
