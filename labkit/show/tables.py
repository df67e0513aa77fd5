"""Tables with thousands separators."""

import re
from numbers import Real
from typing import Any

import pandas as pd
from IPython import get_ipython


def show_thousands() -> None:
    """From here on, what a notebook shows of a table has thousands separators. Outside of one, nothing
    changes, and nowhere does a table's own content."""
    shell = get_ipython()
    if shell is None:
        return
    formatters = shell.display_formatter.formatters
    formatters["text/html"].for_type(pd.DataFrame, lambda frame: with_thousands(frame)._repr_html_())
    formatters["text/plain"].for_type(
        pd.DataFrame, lambda frame, printer, cycle: printer.text(repr(with_thousands(frame)))
    )


def with_thousands(frame: pd.DataFrame) -> pd.DataFrame:
    """The table as it is shown: numbers of 1,000 and more, in columns and in labels, are text with
    separators; the rest of the table is as it was."""
    shown = frame.copy()
    for place in range(frame.shape[1]):
        column = frame.iloc[:, place]
        if pd.api.types.is_float_dtype(column) and (column.abs() >= 1000).any():
            shown.isetitem(place, _separated_floats(column))
        elif any(map(_is_large, column)):
            shown.isetitem(place, pd.Series(list(map(_text, column)), index=frame.index, dtype=object))
    return shown.rename(index=_text, columns=_text)


def _separated_floats(column: pd.Series) -> list[str]:
    """With as many decimals as pandas shows of this column."""
    lines = column.to_string(index=False, header=False).splitlines()
    return [re.sub(r"^-?\d+", lambda whole: f"{int(whole[0]):,}", line.strip()) for line in lines]


def _is_large(value: Any) -> bool:
    return isinstance(value, Real) and abs(value) >= 1000


def _text(value: Any) -> Any:
    return f"{value:,}" if _is_large(value) else value
