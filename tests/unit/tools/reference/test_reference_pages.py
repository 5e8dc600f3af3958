"""The reference pages: of the protos, with their comments, and of the SDK."""

from __future__ import annotations

import re
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.text_format import Parse

import antiphon
from antiphon_tools.reference.page import proto_page
from antiphon_tools.reference.sdk import write_sdk_pages

FILE = """
name: "a.proto" package: "p"
service {
  name: "S"
  method { name: "Do" input_type: ".p.M" output_type: ".p.M" server_streaming: true }
}
message_type {
  name: "M"
  field { name: "text" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL oneof_index: 0 }
  field { name: "many" number: 2 type: TYPE_MESSAGE type_name: ".p.M" label: LABEL_REPEATED }
  field { name: "by" number: 3 type: TYPE_MESSAGE type_name: ".p.M.ByEntry" label: LABEL_REPEATED }
  nested_type {
    name: "ByEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
    field { name: "value" number: 2 type: TYPE_ENUM type_name: ".p.E" label: LABEL_OPTIONAL }
  }
  oneof_decl { name: "content" }
}
enum_type { name: "E" value { name: "E_UNSPECIFIED" number: 0 } }
source_code_info {
  location { path: [4, 0] leading_comments: " A message." }
  location { path: [4, 0, 2, 0] leading_comments: " At most 5 < 6 bytes." }
  location { path: [6, 0, 2, 0] leading_comments: " Does it." }
}
"""


def test_proto_page_has_every_field_with_its_comment() -> None:
    page = proto_page([Parse(FILE, FileDescriptorProto())])
    rows = re.findall(r"<tr><td><code>(.*?)</code></td><td>(.*?)</td><td>(.*?)</td></tr>", page)
    link = '<a href="#p.M">M</a>'
    assert rows == [
        ("Do", f"{link} → stream {link}", "Does it."),
        ("text = 1", "string, one of <code>content</code>", "At most 5 &lt; 6 bytes."),
        ("many = 2", f"repeated {link}", ""),
        ("by = 3", 'map of string to <a href="#p.E">E</a>', ""),
        ("E_UNSPECIFIED = 0", "", ""),
    ]
    assert '<h2 id="p.M">message M</h2>\n<p>A message.</p>' in page
    assert "ByEntry" not in page


def test_sdk_page_has_every_public_name(tmp_path: Path) -> None:
    write_sdk_pages(tmp_path)
    page = (tmp_path / "antiphon.html").read_text()
    told = set(re.findall(r'<section id="(\w+)">', page))
    assert {name for name in antiphon.__all__ if not name.startswith("_")} <= told
    assert 'id="Client.converse"' in page
