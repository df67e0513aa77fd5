"""Records of several machines beside each other, rung by rung."""

from collections.abc import Mapping

from matplotlib.figure import Figure

from labkit.show.host_time import MARKERS
from labkit.show.style import SERIES, colour, figure, styled

LINE_HEIGHT = 0.2  # inches that a line of the legend needs


@styled
def draw_machines(lines: Mapping[str, Mapping[str, float]], what: str, title: str = "") -> Figure:
    """Draw a line per record over the rungs, on a logarithmic axis; the last one is drawn thick.

    lines: for each record, by name, a number above 0 for each of its rungs ("03"). what: the numbers are.
    Raises ValueError if there is no record.
    """
    if not lines:
        raise ValueError("there is no record to draw")
    fig, axes = figure(3.4 + LINE_HEIGHT * len(lines))
    rungs = sorted({rung for line in lines.values() for rung in line})
    axes.set_xlim(-0.3, len(rungs) - 0.7)
    axes.set_xticks(range(len(rungs)), rungs)
    for i, (name, line) in enumerate(lines.items()):
        places = [rungs.index(rung) for rung in line]
        marker = MARKERS[i // len(SERIES) % len(MARKERS)]
        width = 3.0 if i == len(lines) - 1 else 1.2
        axes.plot(
            places, list(line.values()), color=colour(i), marker=marker, markersize=5, lw=width, label=name
        )
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.grid()
    axes.set_xlabel("rung")
    axes.set_ylabel(what)
    axes.set_title(title)
    fig.legend(loc="outside lower left")
    return fig
