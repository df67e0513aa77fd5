"""Where the time of a decode step goes, beside the least that it could take."""

from collections.abc import Mapping

from matplotlib.figure import Figure

from labkit.show.colours import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, SKY
from labkit.show.style import figure, styled

PARTS = (BLUE, ORANGE, GREEN, PURPLE, SKY)


@styled
def draw_step_parts(steps: Mapping[str, tuple[Mapping[str, float], Mapping[str, float]]]) -> Figure:
    """Draw what decode steps are made of, two bars per step, by name ("B = 64"): what its parts take, and the
    least that they could take.

    steps: (parts, floors) for each, microseconds by the part's name; a part without a floor could take no
    time at all.
    """
    names = list(dict.fromkeys(part for parts, _ in steps.values() for part in parts))
    colours = dict(zip(names, [*PARTS, GREY, INK], strict=False))
    fig, axes = figure(1.6 + 0.95 * len(steps))
    ticks, seen = [], set()
    for i, (name, both) in enumerate(steps.items()):
        for j, (what, values) in enumerate(zip(("measured", "at the limit"), both, strict=True)):
            row, left = 2.4 * i + j, 0.0
            ticks.append((row, f"{name}, {what}"))
            for part, us in values.items():
                label = part if part not in seen else None
                seen.add(part)
                axes.barh(row, us, left=left, height=0.85, color=colours[part], alpha=0.8, label=label)
                left += us
            share = "" if j == 0 else f", {100 * left / sum(both[0].values()):.0f} % of it"
            axes.text(left, row, f"  {left:,.0f} µs{share}", va="center")
    axes.set_yticks(*zip(*ticks, strict=True))
    axes.invert_yaxis()
    axes.margins(x=0.16)
    axes.set_xlim(left=0)
    axes.set_xlabel("microseconds of a decode step")
    axes.set_title("Where a step's time goes, and what of it the bytes explain")
    fig.legend(loc="outside lower center", ncols=len(names))
    return fig
