"""Tests of fused kernels, in the environment that has triton: `make test-kernels`."""

from __future__ import annotations

import importlib
import importlib.util
import warnings

# Elsewhere a compiler would choose other kernels, and there is nothing to interpret.
collect_ignore_glob = [] if importlib.util.find_spec("triton") else ["test_*.py"]

if not collect_ignore_glob:
    with warnings.catch_warnings():
        # It decorates methods in a way that it deprecates.
        warnings.simplefilter("ignore", DeprecationWarning)
        importlib.import_module("torch._inductor.compile_fx")
