"""What the OpenAPI document says holds, whatever is asked: schemathesis makes the requests."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from antiphon_gateway.endpoints.openai.image_generation.request import IMAGES
from antiphon_gateway.endpoints.openai.read_aloud.request import SPEECH
from tests.contract.fake_stages import THINKER
from tests.contract.fuzz_files import wav
from tests.contract.served_gateway import MESSAGES, MODEL, serve_gateway, tell_anew
from tests.contract.test_endpoint_fuzz import check_left, left
from tests.integration import families
from tests.integration.test_images_to_come import PAINTS, PNG, paints

schemathesis = pytest.importorskip("schemathesis")

EXAMPLES = 10
"""Of each operation and mode: good requests as far as the document knows, and bad ones."""
REPAIRS = 8
"""Times that a refused request is sent again without what it was refused for."""
GOOD: dict[str, Any] = {
    "model": MODEL, "messages": MESSAGES, "input": "Read this.", "file": wav(Random(0)),
}  # fmt: skip


@pytest.mark.parametrize("reads_aloud", [False, True], ids=["answers", "reads-aloud"])
async def test_requests_that_the_document_allows_or_not_are_answered_as_it_says(
    reads_aloud: bool,
) -> None:
    async with serve_gateway(probe_timeout_s=60.0) as served:
        served.gateway.fleet[THINKER].require().reads_aloud = reads_aloud
        tell_anew(served.gateway)

        def asked(path: str) -> bool:
            return path != IMAGES.path and reads_aloud == (path == SPEECH.path)

        before = await left(served)
        answered = await asyncio.to_thread(ask_everything, served.url, GOOD, asked)
        served.fakes.reset()
        await check_left(served, before, "after all operations")
    # The good ones are not all refused, or nothing was seen of the answers.
    unanswered = {path for path, count in answered.items() if not count}
    # Names of models at random are all unknown.
    assert unanswered <= {"/v1/models/{name}"}


async def test_requests_for_images_are_answered_as_the_document_says() -> None:
    async with families.served(PAINTS, {"mind": paints(PNG)}) as family:
        good, url = {"model": "to-come", "prompt": "A cat."}, str(family.http.base_url)
        asked = IMAGES.path.__eq__
        answered = await asyncio.to_thread(ask_everything, url.rstrip("/"), good, asked)
    assert answered.keys() == {IMAGES.path}
    assert all(answered.values())


def repaired(body: Any, answer: Any, good: Mapping[str, Any]) -> bool:
    """Give the field that was refused a good value, or take it away. Whether there was one."""
    if answer.status_code not in (400, 404) or not isinstance(body, dict):
        return False
    field = re.match(r"\w*", answer.json()["error"]["param"] or "")[0]
    if field not in body:
        return False
    del body[field]
    body |= {name: value for name, value in good.items() if name == field}
    return True


def ask_everything(
    url: str, values: Mapping[str, Any], asked: Callable[[str], bool]
) -> dict[str, int]:
    """Ask at the operations whose path is `asked`; how many requests of each had a good answer.

    `values` are good ones, by field.
    """
    from schemathesis.checks import not_a_server_error
    from schemathesis.generation import GenerationMode
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

    checks = [
        not_a_server_error,
        status_code_conformance,
        content_type_conformance,
        response_schema_conformance,
    ]
    api = schemathesis.openapi.from_url(f"{url}/openapi.json")
    good: dict[str, int] = {}
    for found in api.get_all_operations():
        operation = found.ok()
        if not asked(operation.path):
            continue
        good[operation.path] = 0
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            if mode is GenerationMode.NEGATIVE and operation.method == "get":
                continue

            @given(case=operation.as_strategy(generation_mode=mode))
            @settings(
                max_examples=EXAMPLES,
                derandomize=True,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            def ask(case: Any) -> None:
                # Asked for an output that there is not, its 503 is the answer.
                wanted = checks[1:] if case.path == "/health" else checks
                for _ in range(REPAIRS):
                    answer = case.call_and_validate(checks=wanted, timeout=240)
                    good[case.path] += answer.status_code == 200
                    if not repaired(case.body, answer, values):
                        break

            ask()
    return good
