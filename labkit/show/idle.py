"""The share of a steady decode in which the GPU has nothing to do."""

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from labkit.results import TracedStep
from labkit.show.style import GREEN, INK, PALE, RED, figure, styled

BAR = 0.72


@styled
def draw_idle(steps: Sequence[TracedStep]) -> Figure:
    """Draw the share of each recorded step in which the GPU works: a group of bars per batch size, a bar per
    rung."""
    batch_sizes = sorted({step.batch_size for step in steps})
    rungs = sorted({step.rung for step in steps})
    fig, axes = figure(1.3 + (0.28 * len(rungs) + 0.14) * len(batch_sizes))
    rows, row = {}, 0.0
    for batch_size in batch_sizes:
        for rung in rungs:
            rows[rung, batch_size] = row
            row += 1
        row += 0.5
    for step in steps:
        row, busy = rows[step.rung, step.batch_size], 100 * (1 - step.idle_share)
        axes.barh(row, 100, height=BAR, color=PALE)
        axes.barh(row, busy, height=BAR, color=GREEN, alpha=0.8)
        beside = {"va": "center", "transform": axes.get_yaxis_transform(), "fontsize": 9}
        colour = RED if step.idle_share >= 0.05 else INK
        axes.text(1.02, row, f"idle {100 * step.idle_share:.1f} %", color=colour, weight="bold", **beside)
        axes.text(1.175, row, f"of {step.step_us:,.0f} µs", **beside)
    axes.set_yticks([rows[step.rung, step.batch_size] for step in steps], [_label(step) for step in steps])
    axes.set_ylim(max(rows.values()) + 0.6, -0.6)
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of a step")
    axes.set_title("What the GPU does in a steady decode")
    handles = [Patch(facecolor=GREEN, alpha=0.8, label="works"), Patch(facecolor=PALE, label="waits")]
    fig.legend(handles=handles, loc="outside lower center", ncols=2)
    return fig


def _label(step: TracedStep) -> str:
    return f"B = {step.batch_size}, rung {step.rung}"
