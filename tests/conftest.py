"""What the command line chooses, and fixtures, for tests of more than one folder."""

from __future__ import annotations

import gc
import importlib.util
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from antiphon.transport.heap import leave_out_startup
from antiphon_services.lm.reproducible import ask_for_equal_digits
from antiphon_services.stage.precision import keep_float32_exact
from antiphon_testkit.failures import FailureRecorder
from tests.parameter_ids import parameter_id
from tests.tiers import TIERS, WithoutTorch, is_ignored, is_of

# A machine that only runs the tests of a GPU needs no hypothesis.
if importlib.util.find_spec("hypothesis"):
    import hypothesis

    # An example may take any time on a busy machine; a test has its timeout.
    hypothesis.settings.register_profile("untimed", deadline=None)
    hypothesis.settings.load_profile("untimed")

# As a talker does that is a process of its own.
ask_for_equal_digits()
# As stages do by default. More threads wait for each other in a loop wherever another process
# has the cores: the reference took six times its time and more.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--stage-engine`: what stages run on that can run on vLLM, where real services are started.

    `--browser`: also the tests that need one. `--clients`: also those of published clients.
    `--fuzz-seed`, `--fuzz-seconds`: what the fuzz of the endpoint begins with, and for how long.
    `--gpu`: tests that need a GPU fail where they would be skipped.
    `--write-orders`: write the orders of realtime events anew instead of comparing them.
    `--failures`: a file that gets every failure as a line of JSON.
    `--tier`: a part of the suite, see `tests/tiers.py`.
    """
    parser.addoption("--clients", default="", help="with tests of these folders of tests/clients")
    parser.addoption("--browser", action="store_true", help="with tests that drive a browser")
    parser.addoption("--gpu", action="store_true", help="skip no test that needs a GPU")
    parser.addoption("--stage-engine", choices=("torch", "vllm"), default="torch")
    parser.addoption("--fuzz-seed", default="1", help="or one case as a failure names it")
    parser.addoption("--fuzz-seconds", type=float, default=30.0)
    parser.addoption("--write-orders", action="store_true")
    parser.addoption("--tier", choices=TIERS, help="this part of the suite alone")
    parser.addoption("--failures", type=Path, help="append each failure as JSON to this file")


def pytest_configure(config: pytest.Config) -> None:
    """With vLLM: what an engine that has died leaves to the collector is vLLM's own.

    With `--failures`: record them. In the fast tier, torch is not imported.
    """
    if config.getoption("--stage-engine") == "vllm":
        ignored = r"ignore:Unclosed context <zmq:ResourceWarning"
        config.addinivalue_line("filterwarnings", ignored)
    if config.getoption("--tier") == "fast":
        config.pluginmanager.register(WithoutTorch())
    failures: Path | None = config.getoption("--failures")
    # Workers of xdist report to the process that started them.
    if failures is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailureRecorder(failures))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files without tests of the tier are not imported."""
    return True if is_ignored(collection_path, config.getoption("--tier")) else None


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Identify a test by the same text in every worker."""
    return parameter_id(val, argname)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exclude imported modules and collected tests from garbage collection.

    They are more than a million objects. Hundreds of tests run the collector, which took 0.65 s
    each time.
    """
    gc.disable()
    try:
        found = yield
    finally:
        gc.enable()
    leave_out_startup()
    return found


@pytest.hookimpl(specname="pytest_collection_modifyitems")
def choose_tier(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what is not of the tier."""
    tier = config.getoption("--tier")
    others = [each for each in items if not is_of(each, tier)]
    if others:
        items[:] = [each for each in items if is_of(each, tier)]
        config.hook.pytest_deselected(items=others)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Assign each test to a group, and skip slow tests unless `-m slow` selects them.

    pytest-xdist runs the tests of a group on one worker. The tests of a file are a group. So are
    the tests of one checkpoint shape and those of one family, because several files share their
    services and reference. pytest-xdist reads the groups in the same hook, so this hook runs first.
    """
    asked_for_slow = "slow" in config.option.markexpr
    for item in items:
        if item.get_closest_marker("slow") and not asked_for_slow:
            item.add_marker(pytest.mark.skip(reason="slow: ask for it with -m slow"))
        group = item.nodeid.partition("::")[0]
        callspec = getattr(item, "callspec", None)
        if callspec is not None and "shape" in callspec.params and "equality" in group:
            group = f"equality-{callspec.params['shape']}"
        elif "speaking" in getattr(item, "fixturenames", ()) and "equality" in group:
            group = f"equality-{item.path.parent.name}"
        item.add_marker(pytest.mark.xdist_group(group))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """On a GPU the reference computes as the stages do that are compared with it."""
    if item.get_closest_marker("gpu") is not None:
        # It brings torch, which must find the number of threads set.
        from antiphon_services.lm.attention_calls import disable_cudnn_attention

        keep_float32_exact()
        disable_cudnn_attention()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With `--gpu` a test that needs a GPU and was skipped has failed."""
    report = yield
    needed = item.config.getoption("--gpu") and item.get_closest_marker("gpu") is not None
    if needed and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"--gpu: this test was skipped: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def served() -> Iterator[str]:
    """The URL of a gateway before the embedded model."""
    # Most runs start no services, and OpenAI's client takes its time to import.
    from tests.embedded_model import embedded_model

    with embedded_model() as model:
        yield model.url


@pytest.fixture(scope="session")
def recording(served: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Speech: an answer of the model itself."""
    from tests.embedded_model import spoken_answer

    path = tmp_path_factory.mktemp("said") / "said.wav"
    path.write_bytes(spoken_answer(served, "What is antiphon?")[1])
    return path


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Reference counts alone free what is freed."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
