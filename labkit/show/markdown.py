"""Tables as Markdown has them."""

import pandas as pd


def ran(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of engines that ran: one that is not installed has nothing but dashes."""
    return table.loc[lambda rows: (rows != "–").any(axis=1)]


def markdown(table: pd.DataFrame) -> str:
    """A table of text in Markdown, its numbers to the right."""
    head = " | ".join([str(table.index.name), *table.columns])
    rows = [" | ".join([str(name), *values]) for name, *values in table.itertuples()]
    return "\n".join([f"| {head} |", "| --- |" + " ---: |" * len(table.columns), *(f"| {r} |" for r in rows)])
