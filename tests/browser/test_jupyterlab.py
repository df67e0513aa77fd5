"""The lessons in JupyterLab, in a real browser: every cell runs, a slider moves, an answer is judged."""

import os
import re
from pathlib import Path

import pytest
from lab_in_browser import CHROMIUM, CHROMIUM_ARGS, opened, served
from notebook_files import HOME, NOTEBOOKS, name_of
from skeletons import steps_of

from labkit.paths import ROOT

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine"),
]
NEVER_ANEW = """
        kept = self.kept.setdefault(session, {})
        return kept.setdefault(layer_idx, self.make_row(block_ids, offset))"""
FIGURE = "img.widget-image"  # one that a slider changes
SCREENSHOTS = os.environ.get("SCREENSHOTS")  # a folder, for whoever wants to look


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    with served(tmp_path_factory.mktemp("project")) as address:
        yield address


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_ARGS)
        yield browser
        browser.close()


def photograph(page, name):
    if SCREENSHOTS:
        for theme in ("Light", "Dark"):
            command = f"execute('apputils:change-theme', {{theme: 'JupyterLab {theme}'}})"
            page.evaluate(f"window.jupyterapp.commands.{command}")
            page.wait_for_timeout(1000)
            page.screenshot(path=Path(SCREENSHOTS) / f"{name}_{theme.lower()}.png")


def place_of(code, words):
    return next(place for place, source in code.items() if words in source)


def test_a_reader_meets_the_home_page_and_no_question(browser, address):
    with opened(browser, address) as first:
        page = first.page
        assert page.locator(".jp-Notebook h1").first.inner_text().startswith("labkit")
        page.get_by_role("link", name="00 · An honest paged engine").wait_for()
        page.wait_for_timeout(3000)  # in which a question would come up
        assert page.locator(".jp-Notification-Toast").count() == 0
        photograph(page, "landing")


@pytest.mark.parametrize("notebook", [f"{name_of(path)}.ipynb" for path in (HOME, *NOTEBOOKS)])
def test_every_cell_runs(browser, address, notebook):
    with opened(browser, address, notebook) as lesson:
        lesson.run_all()
        assert lesson.errors() == []
        photograph(lesson.page, notebook.removesuffix(".ipynb").replace("/", "_"))


def test_a_prediction_is_scored_and_a_part_is_judged_wrong_and_then_right(browser, address):
    name = "01_block_table_cache.ipynb"
    step = steps_of(ROOT / "notebooks" / name)[0]
    with opened(browser, address, name) as lesson:
        code = lesson.code()
        bootstrap, imports = list(code)[:2]
        question = place_of(code, "guess=None")
        answer = list(code)[list(code).index(question) + 1]
        for place in (bootstrap, imports):
            lesson.run(place)
        lesson.run(question, code[question].replace("guess=None", "guess=24"))
        said = " ".join(lesson.run(answer).split())  # it is printed in lines of 100 characters
        assert "You said 24: within a factor of 2." in said, said

        place = place_of(code, step.skeleton)
        assert lesson.run(place).startswith("○  block_tables · step 1 of 3")
        wrong = re.sub(r" +# your lines here\n.*", NEVER_ANEW, step.skeleton, count=1)
        assert lesson.run(place, wrong).startswith("✗  block_tables · step 1 of 3")
        assert lesson.run(place, step.solved).startswith("✓  block_tables · step 1 of 3")


def test_a_slider_changes_its_figure(browser, address):
    with opened(browser, address, "00_paged_engine.ipynb") as lesson:
        code = lesson.code()
        slider = place_of(code, "slider")
        for place in (place for place in code if place <= slider):
            lesson.run(place)
        image = lesson.page.locator(FIGURE).first
        image.wait_for()
        before = image.get_attribute("src")
        handle = lesson.page.locator(".noUi-handle").first
        handle.focus()
        handle.press("ArrowRight")
        lesson.page.wait_for_function(
            "([figure, before]) => (document.querySelector(figure)?.src ?? before) !== before",
            arg=[FIGURE, before],
        )
        photograph(lesson.page, "slider")


def test_a_chat_gets_its_answer_from_the_readers_server(browser, address):
    with opened(browser, address, "19_server.ipynb") as lesson:
        lesson.run_all()
        lesson.run(place_of(lesson.code(), "chat(talking)"))  # the cell below it has closed the server
        line = lesson.page.get_by_placeholder("Write here").first
        line.fill("Who are you?")
        line.press("Enter")
        lesson.page.locator("b").get_by_text("model", exact=True).first.wait_for()
        photograph(lesson.page, "chat")
