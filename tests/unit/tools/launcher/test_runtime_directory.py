"""The directory of a launcher, and what becomes of those that killed launchers have left."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from pathlib import Path

import pytest

from antiphon.errors import FailedPrecondition
from antiphon_tools.launcher.runtime_directory import PREFIX, runtime_directory

LONG_S = 240.0
HOLD = """
import time
from antiphon_tools.launcher.runtime_directory import runtime_directory
with runtime_directory() as path:
    (path / "gateways").mkdir()
    (path / "gateways" / "transcripts").write_text("spoken")
    print(path, flush=True)
    time.sleep(3600)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def directories(temporary: Path) -> set[Path]:
    return set(temporary.iterdir())


async def test_directory_of_a_launcher_is_removed_by_the_next_one_only_after_it_was_killed(
    temporary: Path,
) -> None:
    async with asyncio.timeout(LONG_S):
        launcher = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", HOLD),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "TMPDIR": str(temporary)},
        )
        try:
            assert launcher.stdout is not None
            left = Path((await launcher.stdout.readline()).decode().strip())
            with runtime_directory() as own:
                assert {left, own} == directories(temporary)
                assert (left / "gateways" / "transcripts").read_text() == "spoken"
                assert own.stat().st_mode & 0o777 == 0o700
        finally:
            launcher.kill()
            await launcher.wait()
        assert directories(temporary) == {left}
        with runtime_directory() as own:
            assert directories(temporary) == {own}
        assert not directories(temporary)


def test_what_no_launcher_of_this_user_has_left_is_not_removed(temporary: Path) -> None:
    kept = temporary / "kept"
    (kept / "inside").mkdir(parents=True, mode=0o700)
    left = temporary / f"{PREFIX}left"
    left.mkdir(mode=0o700)
    (left / "link").symlink_to(kept)
    (temporary / f"{PREFIX}link").symlink_to(kept)
    (temporary / f"{PREFIX}file").touch()
    public = temporary / f"{PREFIX}public"
    public.mkdir()
    public.chmod(0o755)
    with runtime_directory():
        assert not left.exists()
    names = {each.name.removeprefix(PREFIX) for each in temporary.iterdir()}
    assert names == {"kept", "link", "file", "public"}
    assert (kept / "inside").is_dir()


def test_directory_of_another_user_is_not_removed(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = temporary / f"{PREFIX}left"
    left.mkdir(mode=0o700)
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    with runtime_directory():
        assert left.exists()


@pytest.mark.parametrize(
    ("number", "remedy"), [(errno.EACCES, "; set TMPDIR to a directory"), (errno.EMFILE, "$")]
)
def test_directory_that_cannot_be_opened_is_removed_and_tmpdir_is_named_where_it_helps(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str
) -> None:
    def refuse(*_args: object) -> int:
        raise OSError(number, "words of the system")

    monkeypatch.setattr(os, "open", refuse)
    expected = f"can't create a temporary directory: words of the system{remedy}"
    with pytest.raises(FailedPrecondition, match=expected), runtime_directory():
        pytest.fail("it was opened")
    assert not directories(temporary)
