"""Files and directories that a deployment names and that no service could use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from antiphon.deployment.schema import deployment_of, load_deployment
from antiphon.errors import FailedPrecondition
from antiphon_tools.launcher.launcher import Launcher
from antiphon_tools.launcher.named_files import check_named_files
from tests.unit.tools.launcher.fake_services import Checkout

TLS = {"certificate_file": "file", "key_file": "file"}
MUTUAL = {**TLS, "authority_file": "file"}
SETTINGS: dict[str, tuple[str, dict[str, object]]] = {
    "gateway.keys_file": ("file", {"gateway": {"keys_file": "PATH"}}),
    "gateway.resume.key_file": ("file", {"gateway": {"resume": {"key_file": "PATH"}}}),
    "gateway.sharing.directory": ("directory", {"gateway": {"sharing": {"directory": "PATH"}}}),
    "gateway.auth.jwt.jwks_file": (
        "file",
        {
            "gateway": {
                "auth": {"jwt": {"jwks_file": "PATH", "issuer": "https://me", "audience": "me"}}
            }
        },
    ),
    "gateway.tls.certificate_file": (
        "file",
        {"gateway": {"tls": {**TLS, "certificate_file": "PATH"}}},
    ),
    "gateway.tls.key_file": ("file", {"gateway": {"tls": {**TLS, "key_file": "PATH"}}}),
    "gateway.tls.client_ca_file": ("file", {"gateway": {"tls": {**TLS, "client_ca_file": "PATH"}}}),
    "mutual_tls.certificate_file": ("file", {"mutual_tls": {**MUTUAL, "certificate_file": "PATH"}}),
    "mutual_tls.key_file": ("file", {"mutual_tls": {**MUTUAL, "key_file": "PATH"}}),
    "mutual_tls.authority_file": ("file", {"mutual_tls": {**MUTUAL, "authority_file": "PATH"}}),
    **{
        f"stages.talker.files.{name}": (
            "directory",
            {"stages": {"talker": {"files": {name: "PATH"}}}},
        )
        for name in ("audio_tokenizer_dir", "image_tokenizer_dir", "voice_dir")
    },
}


def naming(path: str, content: object) -> object:
    if isinstance(content, dict):
        return {name: naming(path, value) for name, value in content.items()}
    return path if content == "PATH" else content


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "file").touch()
    (tmp_path / "directory").mkdir()
    return tmp_path


def check(setting: str, path: str, directory: Path, *, gateway: bool = True) -> None:
    deployment = deployment_of(naming(path, SETTINGS[setting][1]))
    check_named_files(deployment, ["thinker", "talker"], directory, gateway=gateway)


@pytest.mark.parametrize("setting", SETTINGS)
def test_path_is_refused_with_the_setting_and_the_remedy_when_it_cannot_be_used(
    files: Path, setting: str
) -> None:
    kind, _ = SETTINGS[setting]
    check(setting, kind, files)
    other = {"file": "directory", "directory": "file"}[kind]
    for path, why in (
        ("missing", "No such file or directory"),
        (other, f"is not a {kind}"),
        ("file/in", "Not a directory"),
    ):
        with pytest.raises(FailedPrecondition) as refused:
            check(setting, path, files)
        assert refused.value.field == setting
        use = "write to" if setting == "gateway.sharing.directory" else "read"
        assert refused.value.message == (
            f"{setting}: {files / path}: {why}; set it to a {kind} that this user can {use}"
        )


@pytest.mark.parametrize("setting", SETTINGS)
def test_only_the_files_of_the_services_to_start_are_checked(files: Path, setting: str) -> None:
    if setting.startswith("gateway."):
        check(setting, "missing", files, gateway=False)
    elif setting.startswith("stages."):
        deployment = deployment_of(naming("missing", SETTINGS[setting][1]))
        check_named_files(deployment, ["thinker"], files, gateway=True)


def test_path_of_mutual_tls_depends_on_the_role(files: Path) -> None:
    for role in ("thinker", "talker"):
        (files / role).touch()
    with pytest.raises(FailedPrecondition, match=r"certificate_file: .*/gateway: No such file"):
        check("mutual_tls.certificate_file", "{role}", files)
    check("mutual_tls.certificate_file", "{role}", files, gateway=False)


def test_absolute_path_does_not_depend_on_the_working_directory(files: Path) -> None:
    check("gateway.keys_file", str(files / "file"), Path("/"))


def test_file_is_refused_when_the_user_cannot_read_it(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The user of the test may be root, who can read everything.
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.R_OK)
    with pytest.raises(FailedPrecondition, match="file: Permission denied; set it to a file that"):
        check("gateway.keys_file", "file", files)


def test_directory_is_refused_when_the_gateways_cannot_write_to_it(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    with pytest.raises(FailedPrecondition, match="Permission denied; set it to a directory that"):
        check("gateway.sharing.directory", "directory", files)
    check("stages.talker.files.voice_dir", "directory", files)


async def test_nothing_is_started_when_a_named_file_is_missing(
    checkout: Checkout, tmp_path: Path
) -> None:
    checkout.write("thinker", f"open({str(tmp_path / 'started')!r}, 'w')")
    written = tmp_path / "deployment.yaml"
    written.write_text(f"model: {checkout.model}\ngateway: {{keys_file: keys.yaml}}\n")
    keys = checkout.root / "keys.yaml"
    with pytest.raises(FailedPrecondition, match=rf"^gateway.keys_file: {keys}: No such file"):
        async with Launcher(load_deployment(written), root=checkout.root):
            pass
    assert not (tmp_path / "started").exists()
