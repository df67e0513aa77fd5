"""How many tokens of prompts are computed: by request, by turn of a conversation, by anything."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from labkit.show.style import BLUE, GREEN, GREY, ORANGE, PURPLE, figure, styled

# A line that lies on another one is narrower and has another pattern, so that both are seen.
LOOKS = (
    {"color": GREY, "lw": 5, "alpha": 0.6},
    {"color": ORANGE, "lw": 2.5, "ls": "--"},
    {"color": BLUE, "lw": 1.5, "ls": "-"},
    {"color": GREEN, "lw": 1.5, "ls": "-."},
    {"color": PURPLE, "lw": 1.5, "ls": ":"},
)
BARS = ({"color": GREY}, {"color": ORANGE, "hatch": "//", "edgecolor": "white"}, {"color": BLUE})


@styled
def draw_curves(
    curves: Mapping[str, Mapping[float, float]], across: str, up: str, title: str, marked: bool = True
) -> Figure:
    """Draw counts by name, a line each; both axes begin at 0.

    across, up: what the axes are, with units. marked: with a dot at each count.
    """
    fig, axes = figure(3.2)
    for (name, counts), look in zip(curves.items(), LOOKS, strict=False):
        axes.plot(list(counts), list(counts.values()), label=name, marker="o" if marked else "", **look)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.grid(axis="y")
    axes.set_title(title)
    fig.legend(loc="outside lower center", ncols=len(curves))
    return fig


@styled
def draw_turns(computed: Mapping[str, Sequence[int]], title: str) -> Figure:
    """Draw a conversation, a group of bars per turn: the tokens of its prompt that each engine computes, by
    name."""
    fig, axes = figure(3.2)
    width = 0.84 / len(computed)
    for number, ((name, counts), look) in enumerate(zip(computed.items(), BARS, strict=False)):
        shift = (number - (len(computed) - 1) / 2) * width
        places = [turn + shift for turn in range(1, len(counts) + 1)]
        axes.bar(places, counts, width, label=name, **look)
    num_turns = max(map(len, computed.values()))
    axes.set_xticks(range(1, num_turns + 1))
    axes.set_xlabel("turn of the conversation")
    axes.set_ylabel("prompt tokens computed")
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.grid(axis="y")
    axes.set_title(title)
    fig.legend(loc="outside lower center", ncols=len(computed))
    return fig
