"""Overrides, model paths and the place of the services; lines cut from bytes."""

from __future__ import annotations

import errno
import re
import socket
from pathlib import Path

import pytest

from antiphon.deployment.schema import Deployment, StageConfig, check_roles, load_deployment
from antiphon.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable
from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon_gateway.conversations.seal import read_keys
from antiphon_tools.launcher.lines import MAX_LINE_BYTES, LineBuffer
from antiphon_tools.launcher.plan import (
    EMBEDDED_MODEL,
    application_root,
    check_shared,
    embedded_model,
    listen_addresses,
    replica_names,
    resolve,
    role_of,
    started_roles,
    with_addresses,
    with_gateway,
    with_overrides,
    with_priorities,
    with_replicas,
    with_resume_key,
)
from antiphon_tools.launcher.ports import check_free
from tests.unit.tools.launcher.fake_services import Checkout

WORDS = "words of the system"


def test_overrides_take_the_schemas_types_when_written_as_text() -> None:
    before = Deployment(stages={"talker": StageConfig(threads=3)})
    after = with_overrides(before, ["talker.slots=4", "thinker.device=cuda:1"])
    assert after.stage("talker") == StageConfig(threads=3, slots=4)
    assert after.stage("thinker") == StageConfig(device="cuda:1")


@pytest.mark.parametrize(
    "override",
    ["talker", "talker.slots", "slots=4", ".slots=4", "talker.=4", "talker.slots=many",
     "talker.slots=0", "talker.speed=4"],
)  # fmt: skip
def test_overrides_are_refused_when_form_key_or_value_is_wrong(override: str) -> None:
    with pytest.raises(InvalidArgument):
        with_overrides(Deployment(), [override])


@pytest.mark.parametrize(
    ("override", "field", "words"),
    [
        ("talker.devise=cuda", "stages.talker.devise", "did you mean stages.talker.device?"),
        ("talker.qqq=1", "stages.talker.qqq", "use one of: addresses, listen,"),
        ("talker.slots=many", "stages.talker.slots", "Expected `int`"),
    ],
)
def test_override_that_is_refused_is_named_with_what_was_meant(
    override: str, field: str, words: str
) -> None:
    with pytest.raises(InvalidArgument, match=rf"^{re.escape(field)}: .*{re.escape(words)}") as e:
        with_overrides(Deployment(), [override])
    assert e.value.field == field


@pytest.mark.parametrize(
    ("content", "field", "words"),
    [
        (
            "stages: {talker: {devise: cuda}}",
            "stages.talker.devise",
            "did you mean stages.talker.device?",
        ),
        ("stages: {talker: {slots: 0}}", "stages.talker.slots", "Expected `int` >= 1"),
        ("stages: {talker: 3}", "stages.talker", "Expected `object`, got `int`"),
        ("gateway: {max_call: 3}", "gateway.max_call", "did you mean gateway.queue.max_calls?"),
        (
            "gateway: {queue: {max_calls: no}}",
            "gateway.queue.max_calls",
            "Expected `int`, got `bool`",
        ),
        ("stage: {}", "stage", "did you mean stages?"),
        ("[]", "", "Expected `object`, got `array`"),
    ],
)
def test_deployment_file_that_is_refused_is_named_with_the_key(
    tmp_path: Path, content: str, field: str, words: str
) -> None:
    path = tmp_path / "deployment.yaml"
    path.write_text(content)
    where = f"{path}: {field}: " if field else f"{path}: "
    with pytest.raises(InvalidArgument, match=rf"^{re.escape(where)}.*{re.escape(words)}") as e:
        load_deployment(path)
    assert e.value.field == field


def test_roles_are_refused_with_the_one_that_was_meant() -> None:
    deployment = Deployment(stages={"code2wave": StageConfig()})
    with pytest.raises(
        InvalidArgument, match=r"has no stage code2wave; .*; did you mean code2wav\?"
    ) as e:
        check_roles(deployment, PIPELINE.name, PIPELINE.roles)
    assert e.value.field == "stages.code2wave"


def test_addresses_to_listen_on_leave_out_stages_that_run_elsewhere() -> None:
    talker = StageConfig(addresses=("h:1",))
    code2wav = StageConfig(metrics_listen="0.0.0.0:9464", health_listen="0.0.0.0:9465")
    stages = {"talker": talker, "code2wav": code2wav}
    deployment = Deployment(stages=stages)
    assert listen_addresses(deployment, started_roles(deployment, PIPELINE)) == {
        "gateway.http_listen": "localhost:8000",
        "gateway.grpc_listen": "localhost:0",
        "stages.thinker.listen": "localhost:0",
        "stages.code2wav.listen": "localhost:0",
        "stages.code2wav.metrics_listen": "0.0.0.0:9464",
        "stages.code2wav.health_listen": "0.0.0.0:9465",
    }


def test_addresses_of_the_gateway_are_those_of_all_its_endpoints() -> None:
    deployment = with_gateway(
        Deployment(), {"metrics_listen": "0.0.0.0:9464", "scaler": {"listen": "0.0.0.0:9466"}}
    )
    assert listen_addresses(deployment, []) == {
        "gateway.http_listen": "localhost:8000",
        "gateway.grpc_listen": "localhost:0",
        "gateway.metrics_listen": "0.0.0.0:9464",
        "gateway.scaler.listen": "0.0.0.0:9466",
    }


def test_ports_are_refused_when_two_settings_have_the_same() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(Unavailable, match=f"^two: can't listen on {address}"):
        check_free({"one": address, "two": address})
    check_free({"one": address, "two": "127.0.0.1:0", "three": "127.0.0.1:0"})


def test_environment_variables_in_addresses_are_replaced_before_they_are_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("POD_IP", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Unavailable, match=f"^one: can't listen on 127.0.0.1:{port}: "):
            check_free({"one": f"${{POD_IP}}:{port}"})


def test_port_of_several_processes_may_be_an_environment_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PORT", "0")
    check_shared("stages.talker.listen", "0.0.0.0:${PORT}", 2)
    monkeypatch.setenv("PORT", "8000")
    with pytest.raises(InvalidArgument, match="can't listen on the same port"):
        check_shared("stages.talker.listen", "0.0.0.0:${PORT}", 2)


@pytest.mark.parametrize(
    ("error", "port", "remedy"),
    [
        *[
            (error, 8000, "use localhost, or an address of this machine (--host)")
            for error in (
                OSError(errno.EADDRNOTAVAIL, WORDS),
                OSError(errno.EAFNOSUPPORT, WORDS),
                # A link-local address (fe80::1) without its interface.
                OSError(errno.EINVAL, WORDS),
                socket.gaierror(socket.EAI_NONAME, WORDS),
                socket.gaierror(socket.EAI_FAIL, WORDS),
                socket.gaierror(socket.EAI_ADDRFAMILY, WORDS),
                # As `socket.create_server` raises it.
                OSError(socket.EAI_NONAME, WORDS),
            )
        ],
        (
            OSError(errno.EACCES, WORDS),
            80,
            "choose another (make up PORT=1104, or --port 1104), "
            "or give this user the right to use the port",
        ),
        (
            OSError(errno.EADDRINUSE, WORDS),
            65535,
            "choose another (make up PORT=65534, or --port 65534), "
            "or stop the process that uses the port",
        ),
    ],
)
def test_the_remedy_depends_on_why_an_address_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch, error: OSError, port: int, remedy: str
) -> None:
    def refuse(*_args: object, **_settings: object) -> None:
        raise error

    monkeypatch.setattr(socket, "create_server", refuse)
    with pytest.raises(Unavailable) as refused:
        check_free({"gateway.http_listen": f"192.0.2.1:{port}"})
    assert refused.value.message == (
        f"gateway.http_listen: can't listen on 192.0.2.1:{port}: {WORDS}; {remedy}"
    )


@pytest.mark.parametrize(
    ("setting", "variable", "option"),
    [
        ("gateway.http_listen", "PORT", "--port"),
        ("gateway.grpc_listen", "GRPC_PORT", "--grpc-port"),
    ],
)
def test_a_port_that_another_program_has_is_told_with_what_sets_it(
    setting: str, variable: str, option: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Unavailable) as refused:
            check_free({setting: f"127.0.0.1:{port}"})
    (other,) = set(re.findall(rf"make up {variable}=(\d+), or {option} \d+", str(refused.value)))
    assert int(other) != port


def test_gateway_settings_replace_only_what_they_name() -> None:
    changed = with_gateway(Deployment(), {"http_listen": "0.0.0.0:80"}).gateway
    assert (changed.http_listen, changed.grpc_listen) == (
        "0.0.0.0:80",
        Deployment().gateway.grpc_listen,
    )


def test_addresses_keep_the_rest_of_a_stage_when_filled_in() -> None:
    before = Deployment(stages={"talker": StageConfig(slots=4)})
    after = with_addresses(before, {"talker": ("h:1", "h:2")})
    assert after.stage("talker") == StageConfig(slots=4, addresses=("h:1", "h:2"))


def test_replicas_are_counted_by_role() -> None:
    deployment = with_replicas(Deployment(), ["talker=2", "thinker=3"])
    assert deployment.stage("talker").replicas == 2
    assert deployment.stage("thinker").replicas == 3
    assert replica_names("talker", 3) == ("talker", "talker#2", "talker#3")
    assert [role_of(name) for name in ("talker", "talker#2", "gateway")] == [
        "talker",
        "talker",
        "gateway",
    ]


@pytest.mark.parametrize(
    "count", ["talker", "talker=", "=2", "talker=two", "talker=-1", "talker=0"]
)
def test_replicas_are_refused_when_they_are_no_count(count: str) -> None:
    with pytest.raises(InvalidArgument):
        with_replicas(Deployment(), [count])


@pytest.mark.parametrize("field", ["listen", "metrics_listen", "health_listen"])
def test_replicas_do_not_share_a_port(field: str) -> None:
    for address, replicas in (("127.0.0.1:4711", 1), ("127.0.0.1:0", 2)):
        stage = StageConfig(replicas=replicas, **{field: address})
        listen_addresses(Deployment(stages={"talker": stage}), ["talker"])
    stage = StageConfig(replicas=2, **{field: "127.0.0.1:4711"})
    with pytest.raises(InvalidArgument, match=rf"stages\.talker\.{field}: 2 replicas"):
        listen_addresses(Deployment(stages={"talker": stage}), ["talker"])


def test_stages_that_are_named_are_started_wherever_others_find_them() -> None:
    elsewhere = {role: StageConfig(addresses=("h:1",)) for role in PIPELINE.roles}
    deployment = Deployment(stages=elsewhere)
    assert started_roles(deployment, PIPELINE) == ()
    assert started_roles(deployment, PIPELINE, ["talker"]) == ("talker",)
    assert set(listen_addresses(deployment, ["talker"], gateway=False)) == {"stages.talker.listen"}
    with pytest.raises(
        InvalidArgument, match="has no stage reader; its stages are thinker, talker, code2wav"
    ):
        started_roles(deployment, PIPELINE, ["talker", "reader"])


def test_engines_stand_back_the_more_the_farther_they_are_from_the_listener() -> None:
    given = {"talker": StageConfig(engine_nice=0), "code2wav": StageConfig(slots=4)}
    stages = with_priorities(Deployment(stages=given), PIPELINE).stages
    assert stages["talker"].engine_nice == 0
    thinker, code2wav = stages["thinker"].engine_nice, stages["code2wav"].engine_nice
    assert thinker is not None
    assert code2wav is not None
    assert thinker > code2wav > 0
    assert stages["code2wav"].slots == 4


def test_engine_on_an_accelerator_does_not_stand_back() -> None:
    before = Deployment(stages={"thinker": StageConfig(device="cuda:0")})
    assert with_priorities(before, PIPELINE).stage("thinker").engine_nice is None


def test_resolve_makes_the_model_path_absolute_when_it_is_relative(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(checkout.root)
    deployment, pipeline = resolve(Deployment(model="model"), checkout.root)
    assert deployment.model == str(checkout.model)
    assert pipeline.name == "qwen3_omni"


def test_resolve_refuses_when_a_stage_is_not_in_the_pipeline(checkout: Checkout) -> None:
    deployment = Deployment(model=str(checkout.model), stages={"tolker": StageConfig()})
    with pytest.raises(InvalidArgument, match="tolker; its stages are thinker, talker, code2wav"):
        resolve(deployment, checkout.root)


def test_resolve_refuses_an_unknown_pipeline_with_those_that_there_are(checkout: Checkout) -> None:
    deployment = Deployment(model=str(checkout.model), pipeline="quartet")
    with pytest.raises(
        NotFound, match=r"unknown pipeline .quartet.; use one of: .*qwen3_omni"
    ) as caught:
        resolve(deployment, checkout.root)
    assert caught.value.field == "pipeline"


def test_resolve_takes_the_embedded_model_when_none_is_named(checkout: Checkout) -> None:
    checkout.model.rename(checkout.embed())
    deployment, pipeline = resolve(Deployment(), checkout.root)
    assert deployment.model == str(checkout.root / EMBEDDED_MODEL)
    assert pipeline.name == "qwen3_omni"


def test_resolve_says_where_the_embedded_model_was_looked_for_when_it_is_missing(
    checkout: Checkout,
) -> None:
    with pytest.raises(FailedPrecondition, match=str(checkout.root / EMBEDDED_MODEL)) as caught:
        resolve(Deployment(), checkout.root)
    assert caught.value.field == "model"


def test_embedded_model_is_where_this_repository_has_it() -> None:
    assert (embedded_model(application_root()) / "generation_config.json").is_file()


def test_application_root_is_the_working_directory_when_it_has_the_services(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(checkout.root)
    assert application_root() == checkout.root


def test_application_root_is_the_checkout_when_started_elsewhere(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(checkout.model)
    assert application_root(checkout.root) == checkout.root


def test_application_root_needs_no_gateway_for_stages_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "services" / "antiphon_services").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert application_root(tmp_path, gateway=False) == tmp_path
    with pytest.raises(
        FailedPrecondition,
        match="`services/antiphon_services` and `gateway/antiphon_gateway` can't be found in",
    ):
        application_root(tmp_path)


def test_application_root_error_names_the_places_when_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FailedPrecondition, match=f"{tmp_path} or {tmp_path / 'lib'}"):
        application_root(tmp_path / "lib")


def test_line_buffer_joins_pieces_and_cuts_at_every_ending() -> None:
    lines = LineBuffer()
    assert list(lines.feed(b"one\ntw")) == ["one"]
    assert list(lines.feed(b"o\r\n\n 50%\r100%\rlas")) == ["two", " 50%", "100%"]
    assert list(lines.flush()) == ["las"]
    assert list(lines.flush()) == []


def test_line_buffer_gives_a_line_in_parts_when_it_never_ends() -> None:
    lines = LineBuffer()
    assert [len(line) for line in lines.feed(b"x" * MAX_LINE_BYTES)] == [MAX_LINE_BYTES]
    assert list(lines.feed(b"y\n")) == ["y"]


def test_resume_key_is_written_for_the_owner_alone_unless_the_deployment_has_one(
    tmp_path: Path,
) -> None:
    path = tmp_path / "resume-key"
    named = with_gateway(Deployment(), {"resume": {"key_file": "/keys"}})
    assert with_resume_key(named, path) is named
    assert not path.exists()
    written = with_resume_key(Deployment(), path)
    assert written.gateway.resume.key_file == str(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(read_keys(path)[0]) == 64
