"""`python -m antiphon_tools.reference DESCRIPTORS FOLDER`: run by `make docs` after protoc."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet

from antiphon_tools.reference.http_page import http_page
from antiphon_tools.reference.pages import copy_pages
from antiphon_tools.reference.proto_page import proto_page
from antiphon_tools.reference.realtime_page import realtime_page
from antiphon_tools.reference.sdk import write_sdk_pages
from antiphon_tools.reference.session_page import session_page
from antiphon_tools.reference.settings_page import settings_page

if __name__ == "__main__":
    descriptors, folder = map(Path, sys.argv[1:])
    copy_pages(folder)
    reference = folder / "reference"
    reference.mkdir()
    files = FileDescriptorSet.FromString(descriptors.read_bytes()).file
    (reference / "grpc.html").write_text(proto_page(files))
    (reference / "http.md").write_text(http_page())
    (reference / "realtime.md").write_text(asyncio.run(realtime_page()))
    (reference / "session-states.md").write_text(session_page())
    (reference / "settings.md").write_text(settings_page())
    write_sdk_pages(reference / "sdk")
