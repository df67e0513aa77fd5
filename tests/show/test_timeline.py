"""A profiled step: its ranges, operators and kernels."""

from labkit import show
from labkit.results.profiles import Span, StepProfile


def test_timeline_draws_every_range_operator_and_kernel():
    span = Span
    ranges = (span("labkit.model.forward", 0, 50), span("labkit.kv.append_token", 50, 40))
    profile = StepProfile(7, 100.0, ranges, ranges[:1], (span("kernel", 10, 25),))
    figure = show.draw_timeline(profile)
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()][-1] == "GPU kernels\n(busy 25 %)"
    boxes = [path.get_extents() for drawn in axes.collections for path in drawn.get_paths()]
    # In milliseconds: the step, its two ranges, in lane 1 an operator and in lane 2 a kernel.
    spans = [(round(box.x0, 6), round(box.x1, 6), round((box.y0 + box.y1) / 2)) for box in boxes]
    assert spans == [(0, 0.1, 0), (0, 0.05, 0), (0.05, 0.09, 0), (0, 0.05, 1), (0.01, 0.035, 2)]
    assert axes.get_title(loc="left") == "One decode step of 7 requests"
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["model.forward", "kv.append_token"]
