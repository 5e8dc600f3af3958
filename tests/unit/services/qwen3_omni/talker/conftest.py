import pytest

from antiphon_testkit.qwen3_omni.tiny_checkpoint import OTHER, SMALL
from tests.unit.services.qwen3_omni.talker.talker_lab import Lab, make_lab


@pytest.fixture(scope="session")
def small_lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return make_lab(tmp_path_factory.mktemp("talker") / "small", SMALL)


@pytest.fixture(scope="session")
def other_lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return make_lab(tmp_path_factory.mktemp("talker") / "other", OTHER)


@pytest.fixture
def launch_ahead() -> bool:
    """Whether the labs' engines do; modules whose tests run with both override it."""
    return False


@pytest.fixture
def small(small_lab: Lab, launch_ahead: bool) -> Lab:
    return small_lab.ahead if launch_ahead else small_lab


@pytest.fixture(params=["small_lab", "other_lab"], ids=["small", "other"])
def lab(request: pytest.FixtureRequest, launch_ahead: bool) -> Lab:
    shape: Lab = request.getfixturevalue(request.param)
    return shape.ahead if launch_ahead else shape
