"""`python -m tools.reference DESCRIPTORS FOLDER`: what `make reference` runs after protoc."""

from __future__ import annotations

import sys
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet

from tools.reference.page import proto_page
from tools.reference.sdk import write_sdk_pages

if __name__ == "__main__":
    descriptors, folder = map(Path, sys.argv[1:])
    files = FileDescriptorSet.FromString(descriptors.read_bytes()).file
    (folder / "protos.html").write_text(proto_page(files))
    write_sdk_pages(folder / "sdk")
