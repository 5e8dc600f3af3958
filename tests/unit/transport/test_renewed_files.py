"""Files that are read again while a process runs."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from antiphon.errors import InvalidArgument
from antiphon.transport.renewed_files import RenewedFiles
from tests.open_files import no_more_files
from tests.own_records import records_of


def reader(path: Path) -> RenewedFiles[str]:
    def read() -> str:
        try:
            text = path.read_text()
        except OSError as error:
            raise InvalidArgument(f"{path}: {error.strerror}") from error
        if text == "half":
            raise InvalidArgument(f"{path}: is no certificate")
        return text

    return RenewedFiles([str(path)], read)


def test_files_that_could_not_be_opened_are_read_when_they_can_be(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "certificate"
    path.write_text("old")
    files = reader(path)
    assert files.now() == "old"
    path.write_text("renewed")
    caplog.set_level(logging.ERROR)
    with no_more_files():
        assert [files.now() for _ in range(3)] == ["old"] * 3
    assert len(records_of(caplog, RenewedFiles.__module__)) == 1, "logged once"
    assert files.now() == "renewed"


def test_a_wrong_file_is_logged_once_until_it_is_right(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "certificate"
    path.write_text("old")
    files = reader(path)
    caplog.set_level(logging.ERROR)
    for _ in range(2):
        path.write_text("half")
        assert [files.now(), files.now()] == ["old"] * 2
        path.write_text("old")
        assert files.now() == "old"
    assert len(records_of(caplog, RenewedFiles.__module__)) == 2
