"""Settings of the gateway: their ranges, and the names that they had before they were grouped."""

from __future__ import annotations

import pytest

from antiphon.deployment.gateway_config import GATEWAY_SETTINGS
from antiphon.deployment.schema import deployment_of
from antiphon.deployment.setting_groups import SettingGroups
from antiphon.deployment.stage_config import STAGE_SETTINGS
from antiphon.errors import InvalidArgument
from antiphon_testkit.gateway_settings import gateway_config, with_settings

FORMER = {
    "max_waiting": "queue.max_waiting",
    "queue_timeout_s": "queue.timeout_s",
    "max_connections": "connections.max_connections",
    "failover_wait_s": "failover.wait_s",
    "fetch_urls": "fetch.urls",
    "probe_timeout_s": "health.probe_timeout_s",
    "request_timeout_s": "limits.request_timeout_s",
    "resume_key_file": "resume.key_file",
    "scaler_listen": "scaler.listen",
    "trace_endpoint": "trace.endpoint",
}


@pytest.mark.parametrize("keepalive_s", [0, -1, float("inf")])
def test_the_time_between_comments_has_a_range(keepalive_s: float) -> None:
    good = deployment_of({"gateway": {"connections": {"keepalive_s": 5}}})
    assert good.gateway.connections.keepalive_s == 5
    with pytest.raises(InvalidArgument, match=r"gateway\.connections\.keepalive_s: .*Expected"):
        deployment_of({"gateway": {"connections": {"keepalive_s": keepalive_s}}})


@pytest.mark.parametrize(("former", "present"), FORMER.items())
def test_a_former_name_is_refused_with_the_present_one(former: str, present: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        deployment_of({"gateway": {former: 1}})
    assert refused.value.field == f"gateway.{former}"
    assert refused.value.message == f"gateway.{former}: is now gateway.{present}"


@pytest.mark.parametrize(
    ("gateway", "message"),
    [
        ({"scaler_max_calls": 3}, "gateway.scaler_max_calls: is no longer a setting"),
        ({"queue": {"max_wait": 3}}, "gateway.queue.max_wait: .*did you mean max_waiting?"),
        ({"tls": {"certificate": ""}}, "gateway.tls.certificate: .*certificate_file?"),
        (
            {"limits": {"max_upload_bytes": 3}},
            "gateway.limits.max_upload_bytes: is no longer a setting, because it was replaced by a "
            "share of gateway.limits.max_memory_bytes; remove it",
        ),
        (
            {"max_kept_bytes": 3},
            "gateway.max_kept_bytes: is no longer a setting, because it was replaced by a share of "
            "gateway.limits.max_memory_bytes; remove it",
        ),
        ({"xyzzy": 3}, "gateway.xyzzy: unknown setting; use one of: http_listen"),
    ],
)
def test_a_setting_that_there_is_not_is_refused(gateway: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        deployment_of({"gateway": gateway})


@pytest.mark.parametrize("known", [GATEWAY_SETTINGS, STAGE_SETTINGS])
def test_a_group_is_what_the_schema_says(known: SettingGroups) -> None:
    made = known.kind()
    groups = {
        name: type(value)
        for name in known.kind.__struct_fields__
        if type(value := getattr(made, name)) in known.groups.values()
    }
    assert groups == known.groups
    for kind in known.groups.values():
        assert kind.__doc__


@pytest.mark.parametrize("known", [GATEWAY_SETTINGS, STAGE_SETTINGS])
def test_each_setting_has_a_flat_name_of_its_own(known: SettingGroups) -> None:
    """Else a former name, or a test that sets one, could mean two settings."""
    for group, kind in known.groups.items():
        for leaf in kind.__struct_fields__:
            assert known.grouped_path(f"{group}_{leaf}") == (group, leaf)
    assert known.grouped_path("timeout_s") is None


def test_settings_of_tests_change_what_they_name() -> None:
    config = gateway_config(max_calls=3, queue_timeout_s=2.0, drain_s=1.0)
    assert (config.queue.max_calls, config.queue.timeout_s, config.drain_s) == (3, 2.0, 1.0)
    changed = with_settings(config, max_waiting=0)
    assert (changed.queue.max_calls, changed.queue.max_waiting) == (3, 0)
    with pytest.raises(TypeError, match="max_call"):
        gateway_config(max_call=3)
