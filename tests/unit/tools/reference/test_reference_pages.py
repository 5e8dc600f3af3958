"""The reference pages: of the protos, the SDK, HTTP, realtime events, settings and states."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import msgspec
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.text_format import Parse

import antiphon
from antiphon.deployment.schema import Deployment, GatewayConfig, StageConfig
from antiphon.runtime.session.states import TRANSITIONS
from antiphon.values.live_conversation import ResponseAudioDelta, TalkEvent
from antiphon_gateway.endpoints.realtime.client_events import ClientEvent
from antiphon_gateway.endpoints.realtime.event_reference import CLIENT_EXAMPLES, SERVER_EXAMPLES
from antiphon_gateway.server import HTTP_ENDPOINTS
from antiphon_tools.reference.http_page import http_page
from antiphon_tools.reference.proto_page import proto_page
from antiphon_tools.reference.realtime_page import realtime_page
from antiphon_tools.reference.sdk import write_sdk_pages
from antiphon_tools.reference.session_page import session_page
from antiphon_tools.reference.settings_page import field_comments, settings_page

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


def test_http_page_has_every_endpoint_and_links_to_objects_that_it_has() -> None:
    page = http_page()
    for endpoint in HTTP_ENDPOINTS:
        if endpoint.messages is not None:
            assert f"## POST {endpoint.path}\n" in page
    objects = {name.lower() for name in re.findall(r"^## (\w+)$", page, re.MULTILINE)}
    linked = set(re.findall(r"\]\(#(\w+)\)", page))
    assert linked
    assert linked <= objects
    assert "| `messages` | array of [ChatMessage](#chatmessage)" in page


def test_realtime_page_has_an_example_of_every_event() -> None:
    """The gateway writes the samples of a response itself, `ResponseAudioDelta` is the SDK's."""
    given = {each["type"] for each in CLIENT_EXAMPLES}
    assert given == {kind.__struct_config__.tag for kind in get_args(ClientEvent)}
    written = [type(each) for each in SERVER_EXAMPLES]
    for kind in get_args(TalkEvent):
        if kind is not ResponseAudioDelta:
            assert any(issubclass(each, kind) for each in written), kind


async def test_realtime_page_has_both_directions() -> None:
    page = await realtime_page()
    headings = re.findall(r"^### ([a-z_.]+)$", page, re.MULTILINE)
    assert len(headings) == len(set(headings))
    assert {"session.update", "response.create", "session.created", "response.done"} <= set(
        headings
    )
    assert "- `session.tracing`" in page


async def test_realtime_page_is_the_same_when_it_is_built_again() -> None:
    assert await realtime_page() == await realtime_page()


def test_settings_page_has_every_setting_with_its_comment() -> None:
    page = settings_page()
    for kind in (Deployment, GatewayConfig, StageConfig):
        section = page.partition(f"## {kind.__name__}\n")[2].partition("\n## ")[0]
        rows = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
        assert rows == [each.name for each in msgspec.structs.fields(kind)]


class _Sample:
    # Of the first
    # and the second.
    first: int = 1
    second: int = 2
    # Of the third.
    third: tuple[str, ...] = ()
    fourth: int


def test_comments_belong_to_the_fields_behind_them() -> None:
    both = "Of the first and the second."
    assert field_comments(_Sample) == {
        "first": both,
        "second": both,
        "third": "Of the third.",
        "fourth": "Of the third.",
    }


def test_session_page_has_every_move() -> None:
    page = session_page()
    assert "| parked | open | - | **finished** | **cancelled** | **failed** |" in page
    cells = [cell for line in page.splitlines() for cell in line.split(" | ")[1:]]
    moves = {"open", "parked", "**finished**", "**cancelled**", "**failed**"}
    assert sum(cell.removesuffix(" |") in moves for cell in cells) == len(TRANSITIONS)
