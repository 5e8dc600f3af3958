"""Run by `make reference` after protoc: `python -m antiphon_tools.reference DESCRIPTORS FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet

from antiphon_tools.reference.page import proto_page
from antiphon_tools.reference.sdk import write_sdk_pages

if __name__ == "__main__":
    descriptors, folder = map(Path, sys.argv[1:])
    files = FileDescriptorSet.FromString(descriptors.read_bytes()).file
    (folder / "protos.html").write_text(proto_page(files))
    write_sdk_pages(folder / "sdk")
