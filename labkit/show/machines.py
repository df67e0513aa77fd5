"""Records of several machines beside each other, rung by rung."""

from collections.abc import Mapping

from matplotlib.figure import Figure

from labkit.show.host_time import MARKERS
from labkit.show.style import SERIES, colour, figure, styled

LINE_HEIGHT = 0.2  # inches that a line of the legend needs


@styled
def draw_machines(lines: Mapping[str, Mapping[str, float]], what: str, title: str = "") -> Figure:
    """Draw a line per record over the rungs, on a logarithmic axis; records of one machine share a colour,
    and the last record is drawn thick, with its whole name in the legend.

    lines: for each record, by its machine, a colon and what it measured, a number above 0 for each of its
    rungs ("03"). what: the numbers are. Raises ValueError if there is no record.
    """
    if not lines:
        raise ValueError("there is no record to draw")
    machines = list(dict.fromkeys(map(machine_of, lines)))
    fig, axes = figure(3.4 + LINE_HEIGHT * (len(machines) + 1))
    rungs = sorted({rung for line in lines.values() for rung in line})
    axes.set_xlim(-0.3, len(rungs) - 0.7)
    axes.set_xticks(range(len(rungs)), rungs)
    *_, newest = lines
    looks = {
        machine: {"color": colour(i), "marker": MARKERS[i // len(SERIES) % len(MARKERS)], "markersize": 5}
        for i, machine in enumerate(machines)
    }
    for name, line in lines.items():
        places, look = [rungs.index(rung) for rung in line], looks[machine_of(name)]
        axes.plot(places, list(line.values()), lw=3.0 if name == newest else 1.0, **look)
    for machine, look in looks.items():
        axes.plot([], [], lw=1.0, label=machine, **look)
    axes.plot([], [], lw=3.0, label=f"the newest: {newest}", **looks[machine_of(newest)])
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.grid()
    axes.set_xlabel("rung")
    axes.set_ylabel(what)
    axes.set_title(title)
    fig.legend(loc="outside lower left")
    return fig


def machine_of(name: str) -> str:
    """The machine in a record's name."""
    return name.partition(":")[0]
