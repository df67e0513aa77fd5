"""The figures that the series' write-ups published, and how far they drift between posts.

data/published.json has an entry per post with its figures. Figures of the same command in neighbouring posts
measure the same code twice: one post's `after` is the next one's `before`. What lies between the two is
drift, and no published difference smaller than that says anything.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from labkit.checks import as_name, shown
from labkit.errors import RecordError
from labkit.paths import ROOT
from labkit.results.files import read_record
from labkit.results.shape import FLAG, NUMBER, TEXT, Kind, OrNull, check_shape

PUBLISHED = ROOT / "data" / "published.json"
FIGURE = {
    "metric": TEXT,
    "statistic": TEXT,
    "unit": TEXT,
    "higher_is_better": FLAG,
    "before": NUMBER,
    "after": NUMBER,
    "before_runs": OrNull([NUMBER, ...]),
    "after_runs": OrNull([NUMBER, ...]),
}
POST = {
    "write_up": Kind(
        "the number of a post, as text", lambda value: isinstance(value, str) and value.isdecimal()
    ),
    "rung_before": OrNull(TEXT),
    "rung_after": OrNull(TEXT),
    "workload": TEXT,
    "command": OrNull(TEXT),
    "hardware": TEXT,
    "source": TEXT,
    "figures": [{}],
}
ROUNDING = 0.0051  # averages are published with two decimals


def published_figures(path: Path = PUBLISHED) -> pd.DataFrame:
    """All published figures, a row per figure.

    `ratio` is above 1 if `after` is better, whatever the metric. Rungs are None for posts that no rung
    follows, `command` where its flags are not known, the runs where only their average is.
    Raises RecordError naming the entry and what is wrong with it.
    """
    posts = read_record(path)
    check_shape(path.name, posts, [{}, ...])
    rows = [row for post in posts for row in _rows(post)]
    kinds = {"higher_is_better": bool, "before": float, "after": float}
    table = pd.DataFrame(rows, dtype=object).astype(kinds)  # object, or a None would become a NaN
    gain = table["after"] / table["before"]
    table.insert(table.columns.get_loc("after") + 1, "ratio", gain.where(table["higher_is_better"], 1 / gain))
    return table


def headline(rung: str) -> pd.Series:
    """The figure that the write-up of `rung` ("01") leads with. Raises RecordError for a rung without one."""
    if not isinstance(rung, str):
        raise RecordError(f"nothing was published about {shown(rung)}: a rung is named as text, such as '01'")
    figures = published_figures()
    of_rung = figures[figures["rung_after"] == rung]
    if of_rung.empty:
        known = ", ".join(figures["rung_after"].dropna().unique())
        raise RecordError(f"nothing was published about rung {rung!r}; there are figures of {known}")
    return of_rung.iloc[0]


def series_drift(figures: pd.DataFrame | None = None) -> pd.DataFrame:
    """A post's `after` beside the next post's `before`: a row per pair of figures of the same command.

    Posts are neighbours if their numbers are: a post between them may have changed the code. `drift` is
    before / after - 1. figures: as from `published_figures`, by default those.
    """
    figures = published_figures() if figures is None else figures
    known = figures.dropna(subset="command").assign(number=lambda table: table["write_up"].astype(int))
    same = ["command", "metric", "statistic"]
    earlier = known[[*same, "number", "write_up", "after"]].assign(number=known["number"] + 1)
    pairs = earlier.merge(known[[*same, "number", "write_up", "before"]], on=[*same, "number"])
    pairs["drift"] = pairs["before"] / pairs["after"] - 1
    named = pairs.rename(columns={"write_up_x": "after_of", "write_up_y": "before_of"})
    return named[["after_of", "before_of", "metric", "after", "before", "drift"]]


def noise_floor(figures: pd.DataFrame | None = None) -> float:
    """The largest drift between neighbouring posts, without its sign: 0.01 is one per cent.

    figures: as from `published_figures`, by default those.
    """
    return float(series_drift(figures)["drift"].abs().max())


def _rows(post: dict) -> list[dict]:
    """A row for each figure of a post, checked."""
    name = f"post {in_words(post, 'write_up')}"
    check_shape(name, post, POST)
    if (post["rung_before"] is None) != (post["rung_after"] is None):
        raise RecordError(f"{name} has one rung; it needs the one before and the one after, or none")
    if not post["figures"]:
        raise RecordError(f"{name} has no figures")
    about = {key: post[key] for key in ("write_up", "rung_before", "rung_after")}
    origin = {key: post[key] for key in ("workload", "command", "hardware", "source")}
    for figure in post["figures"]:
        about_figure = f"{in_words(figure, 'metric')} ({in_words(figure, 'statistic')})"
        _check_figure(f"{name}, {about_figure}", figure)
    return [{**about, **{key: figure[key] for key in FIGURE}, **origin} for figure in post["figures"]]


def in_words(entry: dict, key: str) -> str:
    """What an entry that is not checked yet has there, for a message; "?" if nothing."""
    value = entry.get(key, "?")
    return as_name(value) if isinstance(value, str) else shown(value)


def _check_figure(name: str, figure: dict) -> None:
    check_shape(name, figure, FIGURE)
    for side in ("before", "after"):
        value, runs = figure[side], figure[f"{side}_runs"]
        if not value > 0:
            raise RecordError(f"{name}: {side} is {value}; a rate or a time is above 0")
        if runs is not None and abs(np.mean(runs) - value) > ROUNDING:
            raise RecordError(f"{name}: {side} is {value}, but its runs average {np.mean(runs):.2f}")
