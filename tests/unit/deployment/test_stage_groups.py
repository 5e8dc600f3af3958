"""Settings of a stage: the names that they had before they were grouped."""

from __future__ import annotations

import pytest

from antiphon.deployment.schema import Deployment, deployment_of
from antiphon.deployment.stage_config import STAGE_SETTINGS
from antiphon.errors import InvalidArgument
from antiphon_testkit.flat_settings import stage_config
from antiphon_tools.launcher.plan import with_overrides

FORMER = {
    "prefill_rows": "torch.prefill_rows",
    "graphs": "torch.graphs",
    "fused": "torch.fused",
    "launch_ahead": "torch.launch_ahead",
    "async_to_host": "copies.async_to_host",
    "async_to_device": "copies.async_to_device",
    "staging_bytes": "copies.staging_bytes",
    "kept_recording_bytes": "memory.kept_recording_bytes",
    "hidden_row_bytes": "memory.hidden_row_bytes",
    "flow_cache_bytes": "memory.flow_cache_bytes",
    "held_blocks": "decoding.held_blocks",
    "left_context_codes": "decoding.left_context_codes",
    "right_context_codes": "decoding.right_context_codes",
    "audio_tokenizer_dir": "files.audio_tokenizer_dir",
    "image_tokenizer_dir": "files.image_tokenizer_dir",
    "voice_dir": "files.voice_dir",
    "max_sessions": "sessions.max_sessions",
    "idle_session_timeout_s": "sessions.idle_session_timeout_s",
    "stall_timeout_s": "sessions.stall_timeout_s",
    "live_input_timeout_s": "sessions.live_input_timeout_s",
    "hold_bytes": "sessions.hold_bytes",
    "outbox_bytes": "sessions.outbox_bytes",
    "mailbox_bytes": "sessions.mailbox_bytes",
    "step_timeout_s": "watchdog.step_timeout_s",
    "hung_timeout_s": "watchdog.hung_timeout_s",
    "transport": "link.transport",
    "slab_bytes": "link.slab_bytes",
    "link_session_bytes": "link.session_bytes",
    "link_bytes": "link.bytes",
    "resume_window_s": "link.resume_window_s",
}
"""All settings of the last version that have a group now."""

NEW = {"link.ring"}
"""The settings that the last version did not have."""


@pytest.mark.parametrize(("former", "present"), FORMER.items())
def test_a_former_name_is_refused_with_the_present_one(former: str, present: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        deployment_of({"stages": {"talker": {former: 1}}})
    assert refused.value.field == f"stages.talker.{former}"
    assert refused.value.message == (f"stages.talker.{former}: is now stages.talker.{present}")


def test_each_setting_in_a_group_has_its_former_name_here() -> None:
    present = {
        f"{group}.{leaf}"
        for group, kind in STAGE_SETTINGS.groups.items()
        for leaf in kind.__struct_fields__
    }
    assert present == NEW | set(FORMER.values())


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        (
            {"hold_timeout_s": 3},
            "hold_timeout_s: is no longer a setting, because it was replaced by a constant; "
            "remove it",
        ),
        (
            {"failing_pause_s": 3},
            "failing_pause_s: is no longer a setting, because it was replaced by a constant",
        ),
        ({"torch": {"graph": True}}, "torch.graph: .*did you mean graphs?"),
        ({"slot": 3}, r"slot: unknown setting; did you mean stages\.talker\.slots\?"),
        ({"torch": {"graphs": 3}}, r"torch\.graphs: Expected `bool`"),
        ({"torch": 3}, "torch: Expected `object`"),
    ],
)
def test_a_setting_that_a_stage_does_not_have_is_refused(
    stage: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=rf"stages\.talker\.{message}"):
        deployment_of({"stages": {"talker": stage}})


def test_an_override_reaches_a_setting_in_a_group() -> None:
    before = Deployment(stages={"talker": stage_config(slots=3, graphs=True)})
    after = with_overrides(before, ["talker.torch.fused=true", "talker.link.bytes=4"])
    assert after.stage("talker") == stage_config(slots=3, graphs=True, fused=True, link_bytes=4)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("talker.fused=true", r"stages\.talker\.fused: is now stages\.talker\.torch\.fused"),
        ("talker.slots.fused=1", "slots is not a group of settings"),
        ("talker.torch=1", r"stages\.talker\.torch: Expected `object`"),
    ],
)
def test_an_override_of_what_is_no_setting_is_refused(override: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        with_overrides(Deployment(stages={"talker": stage_config()}), [override])
