from __future__ import annotations

import re

import pytest

from tests.contract.served_gateway import ServedGateway

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_the_page_names_files_that_are_there_and_nothing_elsewhere(
    served: ServedGateway,
) -> None:
    index = await served.http.get("/")
    assert (index.status_code, index.headers["content-type"]) == (200, "text/html; charset=utf-8")
    named = re.findall(r'(?:src|href)="([^"]+)"', index.text)
    assert len(named) >= 4
    pages = [each for each in named if each != "docs"]
    scripts = {"page/app.js"}
    for name in pages:
        assert not re.match(r"[a-z]+:|//", name)
        answer = await served.http.get(f"/{name}")
        assert answer.status_code == 200, name
        scripts |= {f"page/{each}" for each in re.findall(r'"\./([\w-]+\.js)"', answer.text)}
        scripts |= {f"page/{each}" for each in re.findall(r'here\("([\w-]+\.js)"\)', answer.text)}
    for name in scripts:
        answer = await served.http.get(f"/{name}")
        assert answer.status_code == 200, name
        assert "javascript" in answer.headers["content-type"]
        assert not re.search(r"https?://|\beval\(|innerHTML", answer.text)


async def test_a_browser_may_run_its_scripts_alone(served: ServedGateway) -> None:
    for path in ("/", "/page/app.js", "/page/page.css"):
        headers = (await served.http.get(path)).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "microphone=(self)" in headers["permissions-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-request-id"]


async def test_a_browser_keeps_what_has_not_changed(served: ServedGateway) -> None:
    first = await served.http.get("/page/app.js")
    again = await served.http.get("/page/app.js", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert (await served.http.head("/")).content == b""


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/page/other.js", 404),
        ("GET", "/page/%2e%2e/server.py", 404),
        ("GET", "/page/..%2fserver.py", 404),
        ("GET", "/page/", 404),
        ("POST", "/", 405),
        ("POST", "/page/app.js", 405),
    ],
)
async def test_nothing_else_is_served(
    served: ServedGateway, method: str, path: str, status: int
) -> None:
    answer = await served.http.request(method, path)
    assert answer.status_code == status
    assert answer.json()["error"]["message"]
