"""The paths and the name of mutual TLS, which may contain the role."""

from __future__ import annotations

import pytest

from antiphon.deployment.schema import deployment_of
from antiphon.errors import InvalidArgument

SETTINGS = {"certificate_file": "/tls/{role}.pem", "key_file": "key", "authority_file": "ca"}


@pytest.mark.parametrize("path", ["/tls/{stage}.pem", "/tls/{}.pem", "/tls/{role", "{role.x}"])
@pytest.mark.parametrize("field", ["certificate_file", "key_file", "authority_file"])
def test_other_braces_than_those_of_the_role_are_refused(field: str, path: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"^mutual_tls: {field}: only {{role}} can be in"):
        deployment_of({"mutual_tls": {**SETTINGS, field: path}})


def test_name_without_the_role_or_with_other_braces_is_refused() -> None:
    for name, words in (("{role}.{zone}", "name: only"), ("all", "name must contain {role}")):
        with pytest.raises(InvalidArgument, match=words):
            deployment_of({"mutual_tls": {**SETTINGS, "name": name}})


def test_braces_of_a_path_can_be_doubled() -> None:
    settings = deployment_of({"mutual_tls": {**SETTINGS, "key_file": "{{x}}"}}).mutual_tls
    assert settings is not None
    assert settings.key_file.format(role="talker") == "{x}"
