"""The server's page in a real browser: an answer streams, and the engine's state stands beside it."""

import pytest
from http_server import serving
from lab_in_browser import CHROMIUM, CHROMIUM_ARGS

from labkit import InferenceEngine, load_model

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine"),
]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_reader_sends_a_text_and_sees_the_answer_its_times_and_the_engine(scheme):
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver, serving(InferenceEngine(load_model("random:small"))) as door:
        page = driver.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_ARGS).new_page(
            color_scheme=scheme
        )
        wrong = []
        page.on("pageerror", lambda error: wrong.append(error))
        page.goto(door.url)
        page.fill("#text", "abc")
        page.click("#send")
        page.wait_for_function("document.querySelector('.times')?.textContent.includes('tokens per second')")
        assert page.locator(".answer").inner_text() and page.locator(".error").count() == 0
        page.wait_for_function("document.querySelector('#blocks').textContent.match(/of \\d+/)")
        back, ink = (
            page.evaluate(f"getComputedStyle(document.body).{name}") for name in ("backgroundColor", "color")
        )
        assert (back == "rgb(255, 255, 255)") == (scheme == "light") and back != ink and wrong == []
