"""Paths as beginners and other servers' clients write them: the error names the one to use."""

from __future__ import annotations

import pytest

from tests.contract.served_gateway import ServedGateway

pytestmark = pytest.mark.asyncio(loop_scope="session")

WRONG: dict[str, tuple[str, str, int, str]] = {
    "a base URL without /v1": ("POST", "/chat/completions", 404, "mean /v1/chat/completions"),
    "a base URL with it twice": ("GET", "/v1/v1/models", 404, "did you mean /v1/models"),
    "Open WebUI's base URL": ("GET", "/api/v1/models", 404, "did you mean /v1/models"),
    "a typo": ("POST", "/v1/chat/completion", 404, "did you mean /v1/chat/completions"),
    "Kubernetes' habit": ("GET", "/healthz", 404, "did you mean /health"),
    "something that there is not": ("POST", "/v1/embeddings", 404, "see /docs"),
    "a long one": ("GET", "/" + "models/" * 100, 404, "see /docs"),
    "a browser's address": ("GET", "/v1/chat/completions", 405, "use POST"),
    "a form that posts": ("POST", "/v1/models", 405, "use GET"),
    "a WebSocket over HTTP": ("GET", "/v1/realtime", 404, "/v1/realtime is a WebSocket"),
    "a WebSocket that posts": ("POST", "/v1/realtime", 404, "/v1/realtime is a WebSocket"),
}  # fmt: skip


@pytest.mark.parametrize("sender", WRONG)
async def test_a_wrong_path_or_method_is_an_error_with_the_right_one(
    served: ServedGateway, sender: str
) -> None:
    method, path, status, remedy = WRONG[sender]
    answer = await served.http.request(method, path)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (status, "invalid_request_error")
    assert remedy in error["message"]
