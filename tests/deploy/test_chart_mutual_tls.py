"""The certificates by which the services of a release prove themselves to each other."""

from __future__ import annotations

from pathlib import PurePosixPath

import helm_python
import kubernetes_validate
import pytest

from antiphon.transport.mutual_tls import GATEWAY
from tests.deploy.chart_policies import POLICIES
from tests.deploy.chart_rendering import Rendered, Values, preset, render
from tests.deploy.chart_tls_policies import certificates_of, services
from tests.deploy.test_chart_valid import DEFINED_ELSEWHERE, KUBERNETES_VERSIONS

STAGES = {"thinker", "talker", "code2wav"}
SECRETS = {"secretName": "speech-{role}-tls"}
ISSUED = SECRETS | {"certManager": {"issuerRef": {"name": "speech", "kind": "ClusterIssuer"}}}
FOLDER = "/etc/antiphon-mutual-tls/"


def held(rendered: Rendered) -> dict[frozenset[str], set[str]]:
    """The Secrets of the containers of these roles."""
    return {
        frozenset(roles): set(certificates_of(pod, container, FOLDER).values())
        for roles, pod, container in services(rendered)
    }


def in_one_pod(accelerators: str) -> Values:
    return {"colocated": {"speech": {"stages": sorted(STAGES), "accelerators": accelerators}}}


def test_every_service_has_the_secret_of_its_role() -> None:
    rendered = render({"mutualTls": SECRETS})
    expected = {frozenset({role}): {f"speech-{role}-tls"} for role in STAGES | {GATEWAY}}
    assert held(rendered) == expected
    tls = rendered.deployment_file().mutual_tls
    assert tls is not None
    assert (tls.name, tls.operators) == ("{role}.antiphon", ())
    for path in (tls.certificate_file, tls.key_file, tls.authority_file):
        assert PurePosixPath(path).parent == PurePosixPath(FOLDER) / "{role}"
    # The test of the release asks the gateway alone.
    smoke = rendered.pods()["demo-antiphon-smoke"]
    assert not [each for each in smoke["volumes"] if "secret" in each]
    assert not rendered.of_kind("Certificate")


@pytest.mark.parametrize(
    ("accelerators", "expected"),
    [
        ("own", {frozenset({role}): {f"speech-{role}-tls"} for role in STAGES}),
        ("shared", {frozenset(STAGES): {f"speech-{role}-tls" for role in STAGES}}),
    ],
)
def test_containers_of_a_pod_have_the_secrets_of_their_stages_alone(
    accelerators: str, expected: dict[frozenset[str], set[str]]
) -> None:
    rendered = render({"mutualTls": ISSUED} | in_one_pod(accelerators))
    gateway = {frozenset({GATEWAY}): {"speech-gateway-tls"}}
    assert held(rendered) == expected | gateway
    for policy in POLICIES.values():
        assert not list(policy(rendered))


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
@pytest.mark.parametrize("accelerators", ["own", "shared"])
def test_objects_fit_the_kubernetes_schema_with_certificates(
    accelerators: str, version: str
) -> None:
    values = {"mutualTls": ISSUED} | in_one_pod(accelerators)
    for each in render(values, kubernetes=version).objects:
        if each["kind"] not in DEFINED_ELSEWHERE:
            assert kubernetes_validate.validate(each, version, strict=True) == version


def test_certificates_are_asked_of_the_issuer_with_the_names_that_are_set() -> None:
    config = {"name": "{role}.speech.internal", "operators": ["load-test.speech.internal"]}
    rendered = render({"mutualTls": ISSUED | {"config": config}})
    tls = rendered.deployment_file().mutual_tls
    assert tls is not None
    assert (tls.name, tls.operators) == (config["name"], tuple(config["operators"]))
    certificates = {
        name: (each["spec"]["secretName"], each["spec"]["dnsNames"], each["spec"]["issuerRef"])
        for name, each in rendered.of_kind("Certificate").items()
    }
    issuer = {"name": "speech", "kind": "ClusterIssuer"}
    assert certificates == {
        f"demo-antiphon-{role}": (f"speech-{role}-tls", [f"{role}.speech.internal"], issuer)
        for role in STAGES | {GATEWAY}
    }


def test_roles_are_written_as_secrets_may_be_called() -> None:
    values = {"model": {"pipeline": "duet"}, "stages": {"second_voice": {}}, "mutualTls": ISSUED}
    rendered = render(values)
    assert held(rendered)[frozenset({"second_voice"})] == {"speech-second-voice-tls"}
    made = rendered.of_kind("Certificate")["demo-antiphon-second-voice"]["spec"]
    assert made["dnsNames"] == ["second_voice.antiphon"]
    for policy in ("services_have_their_own_certificates", "volumes_are_mounted_and_exist"):
        assert not list(POLICIES[policy](rendered))


def test_ports_of_stages_are_said_to_be_encrypted_and_all_pods_are_replaced() -> None:
    plain, proved = render(), render({"mutualTls": SECRETS})
    assert plain.deployment_file().mutual_tls is None
    for rendered, protocol in ((plain, "kubernetes.io/h2c"), (proved, "https")):
        ports = rendered.of_kind("Service")["demo-antiphon-talker"]["spec"]["ports"]
        assert [each["appProtocol"] for each in ports] == [protocol, "http"]
    for name in plain.of_kind("Deployment"):
        read = [each.annotations(name)["checksum/config"] for each in (plain, proved)]
        assert read[0] != read[1], name


def test_network_policies_are_the_same_with_certificates() -> None:
    plain = preset("everything")
    del plain["mutualTls"]
    assert render(plain).of_kind("NetworkPolicy") == (
        render(preset("everything")).of_kind("NetworkPolicy")
    )


@pytest.mark.parametrize(
    ("said", "error", "reason"),
    [
        ({"secretName": "speech-tls"}, helm_python.HelmValuesError, "secretName"),
        ({"secretName": "Speech-{role}"}, helm_python.HelmValuesError, "secretName"),
        (ISSUED | {"config": {"key_file": "x"}}, helm_python.HelmValuesError, "key_file"),
        (
            SECRETS | {"certManager": {"issuerRef": {"kind": "Issuer"}}},
            helm_python.HelmValuesError,
            "issuerRef",
        ),
        (
            {"certManager": {"issuerRef": {"name": "speech"}}},
            helm_python.HelmRenderError,
            "mutualTls.secretName: is empty; name the Secrets",
        ),
        (
            {"config": {"operators": ["load-test.antiphon"]}},
            helm_python.HelmRenderError,
            "mutualTls.secretName: is empty; name the Secrets",
        ),
    ],
)
def test_values_are_refused_that_give_no_certificates(
    said: Values, error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        render({"mutualTls": said})
