"""The page that opens first: every notebook in order, how long it takes, and how far the reader has come."""

from collections.abc import Mapping
from dataclasses import dataclass

from labkit.ladder import Lesson, Page, all_pages
from labkit.learn.progress import LessonProgress
from labkit.learn.steps import STEPS, share_right

MINUTES = {
    "before_00": 40,
    "00": 75,
    "01": 65,
    "02": 70,
    "before_03": 50,
    "03": 90,
    "04": 65,
    "05": 65,
    "06": 75,
    "07": 70,
    "08": 65,
    "09": 95,
    "10": 55,
    "11": 70,
    "12": 75,
    "13": 60,
    "14": 65,
    "15": 105,
    "16": 55,
    "17": 75,
    "18": 70,
    "19": 85,
    "20": 60,
}

# For a reader with less time: what to read, by name.
ROUTES = {
    "An afternoon": ("before_00", "00", "02", "05", "08", "10"),
    "What the write-ups did": ("before_00", "00", "01", "02", "before_03", "03", "04", "05"),
}


@dataclass(frozen=True)
class Home:
    """The table of all notebooks, for a reader who has done this, by the page's number."""

    done: Mapping[str, LessonProgress]

    @property
    def next_page(self) -> Page:
        """Where to continue: the last notebook in which something was done, while one of its steps is open,
        and otherwise the one after it."""
        pages = all_pages()
        begun = [i for i, page in enumerate(pages) if page.number in self.done]
        if not begun:
            return pages[0]
        last = pages[begun[-1]].number
        is_open = last in STEPS and share_right(last, self.done[last].gates) < 1
        return pages[min(begun[-1] + (not is_open), len(pages) - 1)]

    def _repr_markdown_(self) -> str:
        pages = {page.number: page for page in all_pages()}
        routes = "\n".join(
            f"- **{name}**, {sum(MINUTES[number] for number in route) / 60:.0f} hours: "
            + (", ".join(f"[{number.replace('_', ' ')}]({pages[number].notebook})" for number in route))
            for name, route in ROUTES.items()
        )
        routes += f"\n- **Everything**, {sum(MINUTES.values()) / 60:.0f} hours: all notebooks below"
        head = "| | notebook | what leaves the hot path | minutes | your steps | predictions |\n"
        rule = "| --- | --- | --- | ---: | ---: | ---: |\n"
        return f"{routes}\n\n{head}{rule}" + "\n".join(map(self._row, all_pages()))

    def __repr__(self) -> str:
        return f"continue with {self.next_page.notebook}"

    def _row(self, page: Page) -> str:
        is_rung = isinstance(page, Lesson) and page.rung.number == page.number
        done, steps = self.done.get(page.number, LessonProgress()), STEPS.get(page.number, ())
        if steps and share_right(page.number, done.gates) == 1:
            right = "all"
        else:
            right = f"{sum(step in done.gates for step in steps)} of {len(steps)}" if steps else ""
        cells = (
            "**continue here**" if page == self.next_page else "",
            f"[{page.number.replace('_', ' ')} · {page.title}]({page.notebook})",
            page.rung.removes if is_rung else "",
            str(MINUTES[page.number]),
            right,
            str(len(done.guesses) or ""),
        )
        return f"| {' | '.join(cells)} |"
