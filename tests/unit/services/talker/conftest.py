import pytest
from talker_lab import Lab, make_lab

from antiphon.testing.tiny_checkpoint import OTHER, SMALL


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return make_lab(tmp_path_factory.mktemp("talker") / "small", SMALL)


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return make_lab(tmp_path_factory.mktemp("talker") / "other", OTHER)


@pytest.fixture(params=["small", "other"])
def lab(request: pytest.FixtureRequest) -> Lab:
    shape: Lab = request.getfixturevalue(request.param)
    return shape
