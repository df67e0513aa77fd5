"""What it gains to cut a model among GPUs."""

from collections.abc import Mapping

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from labkit.results.comparison import CONFIDENCE, Comparison
from labkit.show.colours import GREY, GREY_INK, INK, colour
from labkit.show.marks import key_below
from labkit.show.style import figure, styled

ByRequests = Mapping[int, Comparison]


@styled
def draw_gains(gains: Mapping[str, Mapping[str, ByRequests]]) -> Figure:
    """Draw how many times faster models are on several GPUs: a panel per model, a line per number and
    kind of GPUs, a point with its interval per number of requests. Hollow grey points cannot be told from 1.

    gains: by model, GPUs ("2 × H100") and number of requests; at least one.
    """
    fig, axes = figure(3.6, ncols=len(gains), squeeze=False, sharey=True)
    sizes = sorted({gpus for by_gpus in gains.values() for gpus in by_gpus})
    every = sorted({n for by_gpus in gains.values() for by_n in by_gpus.values() for n in by_n})
    for panel, (model, by_gpus) in zip(axes[0], gains.items(), strict=True):
        panel.axhline(1, color=INK, lw=1)
        for gpus, by_requests in by_gpus.items():
            ink = colour(sizes.index(gpus))
            shift = 0.12 * (sizes.index(gpus) - (len(sizes) - 1) / 2)  # so that intervals stand side by side
            places = [every.index(n) + shift for n in by_requests]
            panel.plot(places, [each.speedup for each in by_requests.values()], color=ink, lw=1, alpha=0.5)
            for place, each in zip(places, by_requests.values(), strict=True):
                is_told = each.verdict in ("faster", "slower")
                look = {"color": ink} if is_told else {"color": GREY, "markerfacecolor": "white"}
                panel.plot([place, place], each.interval, lw=5, alpha=0.35, color=look["color"])
                panel.plot(place, each.speedup, "o", markersize=6, **look)
        panel.set_title(model)
        panel.set_xticks(range(len(every)), [f"{n}" for n in every])
        panel.set_xlim(-0.5, len(every) - 0.5)
        panel.set_xlabel("requests at once")
        panel.grid(axis="y")
    axes[0, 0].yaxis.set_major_formatter("×{x:g}")
    axes[0, 0].set_ylabel("times as fast as one GPU")
    handles = [Line2D([], [], marker="o", color=colour(i), label=gpus) for i, gpus in enumerate(sizes)]
    grey = Line2D([], [], marker="o", color=GREY_INK, markerfacecolor="white", ls="", label="cannot tell")
    bar = Line2D([], [], lw=5, alpha=0.35, color=INK, label=f"{100 * CONFIDENCE:.0f} % interval")
    key_below(fig, [*handles, grey, bar], len(handles) + 2)
    fig.suptitle("Above 1 it pays to cut the model among GPUs, below 1 it loses", size=11, weight="bold")
    fig.set_label(f"What it gains to cut {', '.join(gains)} among GPUs, by requests")
    return fig
