"""The installed version of antiphon."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("antiphon")
except PackageNotFoundError:  # run from a source tree that is not installed
    VERSION = "0+source"

__version__ = VERSION
