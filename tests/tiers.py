"""Tiers of the suite, which `pytest --tier` chooses; `make` has a target for each.

| tier | contents |
|---|---|
| fast | unit tests of what runs without torch |
| commit | everything that starts no service processes: units, contract, conformance, equality |
| system | service processes, the chart, clusters, chaos, browsers and published clients |

fast is a part of commit; commit and system together are the whole suite.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path

import pytest

TIERS = ("fast", "commit", "system")
TESTS = Path(__file__).parent
FAST = {
    TESTS / "unit" / name
    for name in (
        "client",
        "deployment",
        "gateway",
        "pipelines",
        "runtime",
        "tools",
        "transport",
        "wire",
    )
}
"""Folders of the fast tier; files directly in `tests/unit` belong to it too."""
NEED_TORCH = {
    TESTS / "unit" / name
    for name in (
        "pipelines/test_rotary_positions.py",
        "runtime/test_checkpoint.py",
        "runtime/test_checkpoint_folders.py",
        "runtime/test_staged_copies.py",
        "runtime/test_torch_files.py",
        "tools/gpu_plan/test_plan_command.py",
        "tools/hub/test_model_directory.py",
        "transport/test_collective.py",
        "transport/test_cuda_stream.py",
        "transport/test_device_edge.py",
        "transport/test_nccl_group.py",
    )
}
"""Files in folders of the fast tier that are not part of it."""
SYSTEM = {TESTS / name for name in ("browser", "clients", "cluster", "deploy")}
"""Folders of the system tier; elsewhere tests marked `processes` belong to it."""


def is_ignored(path: Path, tier: str | None) -> bool:
    """Whether a file or folder has no test of the tier, so that it need not be imported."""
    if tier == "fast":
        if path.is_dir():
            return not any(path.is_relative_to(each) or each.is_relative_to(path) for each in FAST)
        fast = path.parent == TESTS / "unit" or not FAST.isdisjoint(path.parents)
        return not fast or path in NEED_TORCH
    return tier == "commit" and not SYSTEM.isdisjoint((path, *path.parents))


def is_of(item: pytest.Item, tier: str | None) -> bool:
    """Whether a test is of the tier, if its file may have some."""
    if tier is None:
        return True
    system = not SYSTEM.isdisjoint(item.path.parents) or item.get_closest_marker("processes")
    return bool(system) == (tier == "system")


class WithoutTorch:
    """A pytest plugin of the fast tier: a test or a file that imports torch fails."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self) -> None:
        """Refuse to run tests whose files import it."""
        if "torch" in sys.modules:
            files = [path for path in _importers() if path.is_relative_to(TESTS)]
            names = ", ".join(str(path.relative_to(TESTS.parent)) for path in files)
            raise pytest.UsageError(f"the fast tier imports torch; see tests/tiers.py: {names}")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None]:
        """Fail the test that imports it while it runs."""
        before = "torch" in sys.modules
        yield
        if "torch" in sys.modules and not before:
            pytest.fail("this test imports torch; list its file in tests/tiers.py")


def _importers() -> list[Path]:
    """Files of loaded modules that have torch in their globals."""
    torch = sys.modules["torch"]
    return [
        Path(module.__file__)
        for module in list(sys.modules.values())
        if getattr(module, "__file__", None)
        and any(each is torch for each in vars(module).values())
    ]
