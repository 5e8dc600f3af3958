"""The bounds of a stage as its deployment sets them."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.deployment.schema import GatewayConfig, load_deployment
from antiphon.errors import InvalidArgument
from antiphon.runtime.session.plan import HOLD_TIMEOUT_S, MAX_SECONDS, StageLimits
from antiphon_testkit.flat_settings import stage_config
from antiphon_testkit.gateway_settings import gateway_config


def test_limits_are_those_of_the_deployment() -> None:
    config = stage_config(
        slots=3,
        stall_timeout_s=4.0,
        hold_bytes=6,
        max_sessions=7,
        idle_session_timeout_s=8000.0,
    )
    assert StageLimits.of(config, GatewayConfig()) == StageLimits(
        3, 4.0, HOLD_TIMEOUT_S, 6, 7, 8000.0
    )


def test_idle_sessions_outlast_the_longest_request() -> None:
    gateway = gateway_config(request_timeout_s=3600.0)
    limits = StageLimits.of(stage_config(idle_session_timeout_s=60.0), gateway)
    assert limits.idle_session_timeout_s == 3600.0


@pytest.mark.parametrize("seconds", [".inf", ".nan", "-1", "0", str(MAX_SECONDS * 2)])
def test_deployment_with_a_time_that_no_clock_can_keep_is_refused(
    tmp_path: Path, seconds: str
) -> None:
    file = tmp_path / "deployment.yaml"
    file.write_text(f"stages: {{talker: {{sessions: {{stall_timeout_s: {seconds}}}}}}}\n")
    with pytest.raises(InvalidArgument, match="stall_timeout_s"):
        load_deployment(file)
