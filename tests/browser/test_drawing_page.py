"""The page with a model that makes images: the toy family `tests/families/easel`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.in_browser import browser_page, choose, connect_again
from tests.embedded_model import embedded_model

pytestmark = pytest.mark.processes

FAMILY = Path(__file__).parents[1] / "families" / "easel"
PROMPT = "a grey cat"


@pytest.fixture(scope="module")
def drawing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a gateway before the model."""
    folder = tmp_path_factory.mktemp("drawing") / "chalk"
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["EaselForDrawing"]}')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", ":".join((str(FAMILY), *sys.path[1:])))
        with embedded_model("--model", str(folder)) as model:
            yield model.url


def ask(page: Page, *, output: str) -> None:
    choose(page, "Answer", output)
    page.get_by_label("Message").fill(PROMPT)
    page.get_by_role("button", name="Send").click()


def paint_until(page: Page, file: Path) -> None:
    """Let the painter's first step last until the file exists."""

    def ask_slowly(route: Route) -> None:
        body = json.loads(route.request.post_data or "")
        assert body["modalities"] == ["image"]
        options = {**body["options"], "until": str(file), "steps": 4}
        route.continue_(post_data=json.dumps({**body, "options": options}))

    page.route("**/v1/chat/completions", ask_slowly)


def test_image_and_its_progress_are_shown(drawing: str, tmp_path: Path) -> None:
    with browser_page(drawing) as page:
        until = tmp_path / "go on"
        paint_until(page, until)
        ask(page, output="image")
        answer = page.locator("#turns li.answer")
        bar = answer.get_by_role("progressbar")
        expect(bar).to_have_attribute("max", "4")
        expect(bar).to_have_attribute("value", "1")
        expect(bar).to_have_attribute("title", "painter: 1 of 4 steps")
        expect(page.get_by_role("button", name="Interrupt")).to_be_enabled()
        until.touch()
        image = answer.get_by_role("img", name=PROMPT)
        expect(image).to_be_visible()
        expect(page.get_by_role("status")).to_have_text("Ready.")
        assert image.evaluate("each => [each.naturalWidth, each.naturalHeight]") == [16, 16]
        # An image is a task of its own, which the sketcher does without words.
        expect(answer).not_to_contain_text("Here is")
        expect(bar).to_have_count(0)
        expect(page.get_by_role("button", name="Interrupt")).to_be_disabled()
        for width in (1280, 320):
            page.set_viewport_size({"width": width, "height": 700})
            expect(image).to_be_in_viewport(ratio=1)
            assert page.evaluate("document.documentElement.scrollWidth") == width


def test_interrupted_image_is_not_shown_and_the_next_is(drawing: str, tmp_path: Path) -> None:
    with browser_page(drawing) as page:
        paint_until(page, tmp_path / "never")
        ask(page, output="image")
        answers = page.locator("#turns li.answer")
        expect(answers.get_by_role("progressbar")).to_have_attribute("value", "1")
        page.get_by_role("button", name="Interrupt").click()
        expect(page.get_by_role("status")).to_have_text("The answer was cancelled.")
        page.unroute("**/v1/chat/completions")
        ask(page, output="image")
        expect(answers.nth(1).get_by_role("img")).to_be_visible()
        expect(answers.nth(0).get_by_role("img")).to_have_count(0)
        expect(page.get_by_role("status")).to_have_text("Ready.")


def test_text_comes_with_images_where_they_are_no_task(drawing: str) -> None:
    """As the page sees a model whose description has no such option."""

    def without_task(route: Route) -> None:
        listed = route.fetch().json()
        for model in listed["data"]:
            model["options"] = [each for each in model["options"] if each["name"] != "task"]
        route.fulfill(json=listed)

    with browser_page(drawing) as page:
        page.route("**/v1/models", without_task)
        with page.expect_response("**/v1/models"):
            connect_again(page)
        expect(page.get_by_role("status")).to_have_text("Connected.")
        ask(page, output="image")
        answer = page.locator("#turns li.answer")
        expect(answer.get_by_role("img", name=PROMPT)).to_be_visible()
        expect(answer).to_contain_text(f"Here is {PROMPT}")


def test_model_that_does_not_speak_answers_as_text(drawing: str) -> None:
    with browser_page(drawing) as page:
        output = page.get_by_label("Answer", exact=True)
        expect(output).to_have_value("text")
        expect(output.locator("option:not([hidden])")).to_have_text(["as text", "with images"])
        ask(page, output="text")
        answer = page.locator("#turns li.answer")
        expect(answer).to_contain_text(f"Here is {PROMPT}")
        expect(answer.get_by_role("img")).to_have_count(0)


def test_reason_of_a_failed_image_is_shown(drawing: str) -> None:
    with browser_page(drawing, expected_errors=("Failed to load resource",)) as page:
        page.route("**/v1/chat/completions", lambda route: route.continue_(post_data="{}"))
        ask(page, output="image")
        fault = page.locator("#turns li.fault")
        expect(fault).to_contain_text("model")
        expect(page.get_by_role("status")).to_have_text("The answer failed.")
