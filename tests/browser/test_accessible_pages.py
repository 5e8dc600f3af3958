"""axe-core's rules on the pages, in both colour schemes and wherever something opens."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Page, expect

from tests.browser.in_browser import browser_page, choose

pytestmark = pytest.mark.processes

AXE = Path(sys.prefix) / "browser" / "node_modules" / "axe-core" / "axe.min.js"
SERIOUS = ("serious", "critical")
ColorScheme = Literal["dark", "light"]
SCHEMES: tuple[ColorScheme, ...] = ("dark", "light")


def violations(page: Page) -> list[str]:
    """What is serious or critical: the rule and the elements."""
    # Evaluated, because the page's security policy has no place for another script.
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run({ resultTypes: ['violations'] })")
    assert found["testEngine"]["name"] == "axe-core"
    assert found["passes"]
    return [
        f"{each['id']}: {node['html']}"
        for each in found["violations"]
        if each["impact"] in SERIOUS
        for node in each["nodes"]
    ]


def test_violation_is_found_where_there_is_one(page: Page) -> None:
    page.evaluate("document.body.append(document.createElement('input'))")
    assert violations(page) == ["label: <input>"]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_page_is_accessible(served: str, scheme: ColorScheme) -> None:
    with browser_page(served) as page:
        page.emulate_media(color_scheme=scheme)
        assert violations(page) == []
        choose(page, "Answer", "text")
        page.get_by_label("Message").fill("What is antiphon?")
        page.get_by_label("Message").press("Enter")
        page.get_by_text("Stages", exact=True).click()
        expect(page.get_by_role("status")).to_have_text("Ready.")
        page.get_by_role("button", name="Talk").click()
        assert violations(page) == []
        for pane in ("Settings", "Events"):
            page.get_by_role("button", name=pane, exact=True).click()
            assert violations(page) == []


@pytest.mark.parametrize("scheme", SCHEMES)
def test_reference_page_is_accessible(page: Page, scheme: ColorScheme) -> None:
    page.get_by_role("link", name="Reference").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("antiphon")
    page.emulate_media(color_scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")
    models = page.locator("form[data-path='/v1/models']")
    models.get_by_role("button", name="Send").click()
    expect(models.get_by_role("status")).to_contain_text("200 OK after")
    assert violations(page) == []
