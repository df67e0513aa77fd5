"""The figures that the series' write-ups published, and how far they drift between posts.

data/published.json has an entry per post with its figures. Figures of the same command in neighbouring posts
measure the same code twice: one post's `after` is the next one's `before`. What lies between the two is
drift, and no published difference smaller than that says anything.
"""

import pandas as pd

from labkit.checks import shown
from labkit.errors import RecordError
from labkit.paths import ROOT
from labkit.results.files import read_record

PUBLISHED = ROOT / "data" / "published.json"
ABOUT = ("workload", "command", "hardware", "source")  # of a post, behind its figures


def published_figures() -> pd.DataFrame:
    """All published figures, a row per figure.

    `ratio` is above 1 if `after` is better, whatever the metric. Rungs are None for posts that no rung
    follows, `command` where its flags are not known, the runs where only their average is.
    """
    rows = [
        {name: value for name, value in post.items() if name not in ("figures", *ABOUT)}
        | {name: tuple(value) if isinstance(value, list) else value for name, value in figure.items()}
        | {name: post[name] for name in ABOUT}
        for post in read_record(PUBLISHED)
        for figure in post["figures"]
    ]
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


def noise_floor() -> float:
    """The largest drift between neighbouring posts, without its sign: 0.01 is one per cent."""
    return float(series_drift()["drift"].abs().max())
