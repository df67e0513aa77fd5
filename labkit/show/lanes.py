"""Figures of rows of boxes: on a clock, or of rows that are computed together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from matplotlib.figure import Figure

from labkit.results.profiles import Span, StepProfile
from labkit.show.colours import BLUE, GREEN, GREY, INK, ORANGE, PALE, PURPLE, SERIES, SKY, colour
from labkit.show.style import Look, as_patch, bare, box, figure, key_below, name_rows, panels, styled, write

HEIGHT = 0.64  # of a row's boxes
VISIBLE = 0.003  # of the axis: the width of a box that would be thinner
ROUNDING = 1e-6  # by which two boxes may overlap, and still follow one another
DARK = (BLUE, GREEN)  # white is read on them


class Box(NamedTuple):
    """A box in a row, from `start` to `end`, its look, and the text in it where there is room."""

    row: int
    start: float
    end: float
    look: Look
    text: str = ""


Rows = tuple[Sequence[str], Sequence[Box]]  # the names of a panel's rows, and what is in them


@styled
def draw_boxes(
    shown: Mapping[str, Rows], across: str, looks: Mapping[str, Look], ncols: int, end: float | None = None
) -> Figure:
    """Draw a panel for each title, with rows of boxes, and below all of them what the looks mean. Boxes of a
    row that overlap stand one below the other; where a look is PALE, it is that of a row without a box.

    across: what is on the axis; it has no ticks where that is nothing. end: where it ends, and so do all
    boxes.
    """
    heights = [max(1, len(names)) for names, _ in shown.values()]
    size = 0.9 + 0.45 * len(shown) + (0.42 if sum(heights) <= 6 else 0.3) * sum(heights)
    fig, all_axes = panels(size, len(shown), sharex=True, height_ratios=heights)
    end = end or max(each.end for _, boxes in shown.values() for each in boxes)
    for axes, (title, (names, boxes)) in zip(all_axes, shown.items(), strict=True):
        for row in range(len(names)):
            if PALE in looks.values():
                box(axes, (0, row - HEIGHT / 2), end, HEIGHT, fc=PALE, lw=0)
            of_row = [each for each in boxes if each.row == row and (each.start < end or each.end <= end)]
            levels = list(levels_of(of_row))
            height = HEIGHT / (max(levels, default=0) + 1)
            for each, level in zip(of_row, levels, strict=True):
                top, width = row - HEIGHT / 2 + level * height, min(each.end, end) - each.start
                look = {"edgecolor": "white", "lw": 0.6} | as_patch(each.look)
                box(axes, (each.start, top), max(width, VISIBLE * end), height, **look)
                if width > 0.011 * end * (len(each.text) + 0.3):
                    ink = "white" if each.look in DARK else INK
                    write(axes, each.start + width / 2, top + height / 2, each.text, fontsize=8.5, color=ink)
        axes.set_xlim(0, end)
        name_rows(axes, names)
        bare(axes)
        axes.set_title(title)
    all_axes[-1].set_xlabel(across)
    if not across:
        all_axes[-1].set_xticks([])
    key_below(fig, looks, ncols)
    return fig


def levels_of(boxes: Sequence[Box]) -> Iterator[int]:
    """For each box, the first level on which the one before it has ended: 0 for all, unless they overlap."""
    ends: list[float] = []
    for each in boxes:
        level = next((i for i, last in enumerate(ends) if last <= each.start + ROUNDING), len(ends))
        ends[level : level + 1] = [each.end]
        yield level


class Stretch(NamedTuple):
    """What was done in a lane from `start` to `end`, and whose it was: a kernel's or a step's."""

    lane: str
    work: str
    start: float
    end: float
    whose: str = ""


KERNEL_STATES = {"waits": ORANGE, "queues for memory": PURPLE, "moves bytes": BLUE}


def draw_lanes(lanes: Mapping[str, Sequence[Stretch]], end: float | None = None) -> Figure:
    """Draw what kernels do, by name, all on one clock: a row per stream in which a kernel ran, a kernel's
    name over its boxes.

    lanes: the works are KERNEL_STATES. end: where the clock ends, in microseconds.
    """
    end = end or max(each.end for stretches in lanes.values() for each in stretches)
    streams = {name: sorted({each.lane for each in stretches}) for name, stretches in lanes.items()}
    shown = {
        name: (rows, [Box(rows.index(s.lane), s.start, s.end, KERNEL_STATES[s.work]) for s in lanes[name]])
        for name, rows in streams.items()
    }
    looks = {f"a kernel {state}": shade for state, shade in KERNEL_STATES.items()}
    fig = draw_boxes(shown, "microseconds", looks | {"no kernel": PALE}, 4, end)
    for axes, (name, stretches) in zip(fig.axes, lanes.items(), strict=True):
        starts: dict[str, float] = {}  # by lane, of the kernel there, which waits before it moves bytes
        for each in stretches:
            start = starts.setdefault(each.lane, each.start)
            if each.work == "moves bytes":
                del starts[each.lane]
                stop, row = min(each.end, end), streams[name].index(each.lane)
                if stop - start > 0.09 * end:
                    middle, look = (start + stop) / 2, {"ha": "center", "va": "bottom", "color": INK}
                    axes.text(middle, row - HEIGHT / 2, each.whose, fontsize=7.5, **look)
    return fig


# By the kind of work: its colours, in even and odd steps; and the words of the legend, for a decode step.
WORK = {"launch": (BLUE, BLUE), "accept": (ORANGE, ORANGE), "gpu": (GREEN, "#7FCEB9")}
WORDS = {
    "launch": "host: make room, launch",
    "accept": "host: read, end requests, hand out",
    "gpu": "GPU: the step itself",
}
HOST_AND_GPU = ("host", "GPU")
SHOWN = 30  # launches of a step


def draw_schedules(
    schedules: Mapping[str, Sequence[Stretch]], end: float | None = None, words: Mapping[str, str] = WORDS
) -> Figure:
    """Draw when the host and the GPU work, two lanes per schedule, by title, all on one clock; each box has
    the number of its step, or of its kernel.

    end: where the clock ends, in microseconds. words: the legend's, by the kind of work; a decode step's by
    default.
    """
    shown: dict[str, Rows] = {}
    for title, schedule in schedules.items():
        boxes = [
            Box(HOST_AND_GPU.index(s.lane), s.start, s.end, WORK[s.work][int(s.whose) % 2], s.whose)
            for s in schedule
        ]
        shown[title] = HOST_AND_GPU, boxes
    looks = {text: WORK[work][0] for work, text in words.items()} | {"waits": PALE}
    return draw_boxes(shown, "microseconds", looks, 4, end)


def draw_launches(kernels: int, eager_us: float, graph_us: float, gpu_us: float) -> Figure:
    """Draw the beginning of a decode step twice, to scale: its kernels launched one by one, and as one CUDA
    graph, as far as SHOWN launches reach.

    kernels: how many the step has. eager_us, graph_us: microseconds that each of the two steps took as a
    whole; gpu_us: of them, the kernels' own. All launches are drawn as if they took the same time, and so are
    all kernels: only the sums are measured.
    """
    launch, kernel = eager_us / kernels, gpu_us / kernels
    end = min(SHOWN, kernels) * launch
    eager, graph = [], [Stretch("host", "launch", 0, launch, "0")]
    for i in range(kernels):
        launched = (i + 0.85) * launch
        eager.append(Stretch("host", "launch", i * launch, launched, str(i)))
        eager.append(Stretch("GPU", "gpu", launched, launched + min(kernel, launch), str(i)))
        start = 0.85 * launch + i * kernel
        graph.append(Stretch("GPU", "gpu", start, start + kernel, str(i)))
    busy = 100 * min(1.0, gpu_us / eager_us)
    titles = (
        f"Launched one by one: {kernels} kernels in {eager_us:,.0f} µs, GPU busy {busy:.0f} %",
        f"One replay: the same {kernels} kernels in {graph_us:,.0f} µs",
    )
    words = {
        "launch": "host: launches a kernel, or all at once",
        "gpu": "GPU: runs a kernel",
    }
    return draw_schedules(dict(zip(titles, (eager, graph), strict=True)), end=end, words=words)


@styled
def draw_timeline(profile: StepProfile) -> Figure:
    """Draw one profiled step on the clock, a lane each: the named ranges, the operators that Python called,
    and, on a GPU, its kernels."""
    lanes = ["named ranges", "PyTorch operators"]
    if profile.kernels:
        lanes.append(f"GPU kernels\n(busy {100 * profile.gpu_busy:.0f} %)")
    fig, axes = figure(1.7 + 0.5 * len(lanes))
    names = list(dict.fromkeys(span.name for span in profile.ranges))
    axes.broken_barh([(0, profile.duration / 1e3)], (-0.35, 0.7), color=PALE)
    for i, name in enumerate(names):
        boxes = bars([span for span in profile.ranges if span.name == name])
        axes.broken_barh(boxes, (-0.35, 0.7), color=colour(i), label=name.removeprefix("labkit."))
    for lane, spans in ((1, profile.operators), (2, profile.kernels)):
        # Most boxes are thinner than a pixel: unsnapped, their density shows as shade.
        axes.broken_barh(bars(spans), (lane - 0.35, 0.7), color=INK, lw=0, snap=False)
    name_rows(axes, lanes)
    axes.set_xlabel("milliseconds since the step began (with the profiler on, which slows the step)")
    axes.set_title(f"One decode step of {profile.batch_size} requests")
    fig.legend(loc="outside lower center", ncols=2)
    return fig


def bars(spans: Sequence[Span]) -> list[tuple[float, float]]:
    """(start, duration) of each span in milliseconds, as `broken_barh` takes them."""
    return [(span.start / 1e3, span.duration / 1e3) for span in spans]


class JoinStep(NamedTuple):
    """A step: the rows that it computes, and in it by request: "token", "waits" or "prompt"."""

    rows: int
    states: Mapping[int, str]


REQUEST_STATES = {  # by the state: the words of the legend, and the look
    "token": ("runs, and gets a token", BLUE),
    "waits": ("runs, and gets none", {"facecolor": ORANGE, "hatch": "//", "edgecolor": "white"}),
    "prompt": ("its prompt is computed", {"facecolor": GREEN, "hatch": "..", "edgecolor": "white"}),
}


def draw_joins(runs: Mapping[str, Sequence[JoinStep]]) -> Figure:
    """Draw each run's steps, by its title, as columns, one behind the other, each as wide as the rows that it
    sends through the layers; a line per request."""
    shown = {}
    for title, steps in runs.items():
        requests, boxes, start = sorted({r for step in steps for r in step.states}), [], 0
        for step in steps:
            looks = ((requests.index(r), REQUEST_STATES[state][1]) for r, state in step.states.items())
            boxes += [Box(row, start, start + step.rows, look) for row, look in looks]
            start += step.rows
        shown[title] = [f"request {request}" for request in requests], boxes
    across = "rows through the layers, step by step (a box is as long as its step)"
    return draw_boxes(shown, across, dict(REQUEST_STATES.values()), 3)


def draw_packing(lengths: Sequence[int], max_tokens: int) -> Figure:
    """Draw prompts of so many tokens twice, to one scale: a row per prompt, each padded to the longest; and
    packed behind each other into chunks of `max_tokens` rows, the last of which may be shorter."""
    longest, ends = max(lengths), list(accumulate(lengths))
    pad = {"facecolor": "white", "edgecolor": GREY, "hatch": "///"}
    padded, packed = [], []
    for prompt, (length, end) in enumerate(zip(lengths, ends, strict=True)):
        padded.append(Box(prompt, 0, length, colour(prompt), str(prompt)))
        padded += [Box(prompt, length, longest, pad)] * (length < longest)
        for chunk in range((end - length) // max_tokens, -(-end // max_tokens)):
            first, last = chunk * max_tokens, (chunk + 1) * max_tokens
            piece = max(end - length, first) - first, min(end, last) - first
            packed.append(Box(chunk, *piece, colour(prompt), str(prompt)))
    rows, total, chunks = len(lengths) * longest, ends[-1], packed[-1].row + 1
    title = f"Padded: {rows:,} rows for {total:,} tokens, {rows - total:,} of them pads"
    shown = {title: ([f"prompt {i}" for i in range(len(lengths))], padded)}
    title = f"Packed: {total:,} rows, in {chunks} chunks of at most {max_tokens:,}"
    shown[title] = [f"chunk {i}" for i in range(chunks)], packed
    looks = {"tokens of a prompt, a colour each": SERIES[0], "pads": pad}
    return draw_boxes(shown, "rows through the layers (tokens)", looks, 2)


def draw_request(stretches: Sequence[Stretch]) -> Figure:
    """Draw the stretches of one request, in milliseconds since the client began: a row per lane, in the order
    in which they are named, a colour per kind of work."""
    lanes = list(dict.fromkeys(stretch.lane for stretch in stretches))
    works = list(dict.fromkeys(stretch.work for stretch in stretches))
    boxes = [Box(lanes.index(s.lane), s.start, s.end, colour(works.index(s.work))) for s in stretches]
    title = f"One request, from its first byte to its last frame: {max(s.end for s in stretches):,.0f} ms"
    looks = {work: colour(i) for i, work in enumerate(works)} | {"waits": PALE}
    return draw_boxes({title: (lanes, boxes)}, "milliseconds since the client began to send", looks, 4)


def draw_block_lives(lives: Mapping[str, Sequence[int]]) -> Figure:
    """Draw how many records describe one block of the cache as it fills, a row per kind of record, by name.

    Each record is a box, as long as it described the block. lives: for each kind, how many records had been
    made after each appended token.
    """
    names, boxes = [], []
    for row, (name, created) in enumerate(lives.items()):
        starts = [t for t in range(len(created)) if t == 0 or created[t] > created[t - 1]]
        for number, (start, end) in enumerate(pairwise([*starts, len(created)])):
            boxes.append(Box(row, start, end, (BLUE, SKY)[number % 2]))
        names.append(f"{name}\n{created[-1]} created")
    title = "One block's life: each box is one record, as wide as it lasted"
    return draw_boxes({title: (names, boxes)}, "tokens appended to the block", {}, 1)
