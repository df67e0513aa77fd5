"""Colours that colour-blind readers can tell apart."""

# Okabe and Ito (2008)
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, YELLOW, GREY = "#CC79A7", "#56B4E9", "#F0E442", "#999999"
SERIES = (BLUE, ORANGE, GREEN, PURPLE, SKY, RED, YELLOW)
INK = "#222222"
GREY_INK = "#6B6B6B"  # "cannot tell" in words: grey, and dark enough to be read
PALE = "#EEEEEE"


def colour(index: int) -> str:
    """The colour of the series with this index; colours repeat after SERIES is used up."""
    return SERIES[index % len(SERIES)]
