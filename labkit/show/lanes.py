"""Figures on a clock, or of rows that are computed together."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkit.results.profiles import Span as ProfiledSpan
from labkit.results.profiles import StepProfile
from labkit.show.colours import BLUE, GREEN, GREY, INK, ORANGE, PALE, PURPLE, RED, SERIES, colour
from labkit.show.marks import bare, box, key_below, name_rows, write
from labkit.show.style import figure, panels, styled

HEIGHT = 0.62  # height of a row's boxes
VISIBLE = 0.003  # of the axis: the width of a box that would be thinner


class Span(NamedTuple):
    """A stretch of a kernel's time, from `start` to `end` in microseconds: it waits, queues for the
    memory, or moves bytes."""

    stream: str
    kernel: str
    state: str  # one of KERNEL_STATES
    start: float
    end: float


KERNEL_STATES = {"waits": ORANGE, "queues for memory": PURPLE, "moves bytes": BLUE}
THIN = 0.5


@styled
def draw_lanes(lanes: Mapping[str, Sequence[Span]], end: float | None = None) -> Figure:
    """Draw spans by name, all on one clock: a row per stream in which a kernel ran, a kernel's name over its
    boxes.

    end: where the clock ends, in microseconds. Raises ValueError if there is no span.
    """
    end = end or max(span.end for spans in lanes.values() for span in spans)
    rows = {name: list(dict.fromkeys(span.stream for span in spans)) for name, spans in lanes.items()}
    heights = [len(streams) for streams in rows.values()]
    fig, all_axes = panels(
        0.9 + 0.5 * len(lanes) + 0.62 * sum(heights), len(lanes), sharex=True, height_ratios=heights
    )
    for axes, (name, spans) in zip(all_axes, lanes.items(), strict=True):
        streams = sorted(rows[name])
        for row in range(len(streams)):
            box(axes, (0, row - THIN / 2), end, THIN, fc=PALE, lw=0)
        spans = [span._replace(end=min(span.end, end)) for span in spans if span.start < end]
        for span in spans:
            corner = span.start, streams.index(span.stream) - THIN / 2
            box(axes, corner, span.end - span.start, THIN, fc=KERNEL_STATES[span.state], ec="white", lw=0.6)
        for stream, kernel, start, stop in kernels_of(spans):
            if stop - start > 0.09 * end:
                place = ((start + stop) / 2, streams.index(stream) - THIN / 2 - 0.04)
                axes.text(*place, kernel, ha="center", va="bottom", fontsize=7.5, color=INK)
        axes.set_xlim(0, end)
        axes.set_yticks(range(len(streams)), streams)
        axes.set_ylim(len(streams) - 0.6, -0.6)
        bare(axes)
        axes.set_title(name)
    all_axes[-1].set_xlabel("microseconds")
    looks = {f"a kernel {state}": shade for state, shade in KERNEL_STATES.items()}
    key_below(fig, looks | {"no kernel": PALE}, 4)
    return fig


def kernels_of(spans: Sequence[Span]) -> list[tuple[str, str, float, float]]:
    """Stream, name, start and end of each kernel: a wait and what comes right after it are one kernel's."""
    kernels: list[tuple[str, str, float, float]] = []
    last: dict[str, tuple[int, Span]] = {}  # by stream: the kernel's place in the list, and its last span
    for span in sorted(spans, key=lambda span: span.start):
        place, before = last.get(span.stream, (0, None))
        goes_on = before is not None and before.state != "moves bytes" and span.state != "waits"
        if goes_on and before.kernel == span.kernel:
            kernels[place] = (*kernels[place][:3], span.end)
        else:
            place = len(kernels)
            kernels.append((span.stream, span.kernel, span.start, span.end))
        last[span.stream] = place, span
    return kernels


class Busy(NamedTuple):
    """A piece of work of one step, on the host or on the GPU: from `start` to `end`, in microseconds."""

    lane: str  # "host" or "GPU"
    work: str  # one of WORK
    step: int  # its number; in a chain of kernels the kernel's
    start: float
    end: float


# By the kind of work: its colours, in even and odd steps; and the words of the legend, for a decode step.
WORK = {"launch": (BLUE, BLUE), "accept": (ORANGE, ORANGE), "gpu": (GREEN, "#7FCEB9")}
WORDS = {
    "launch": "host: make room, launch",
    "accept": "host: read, end requests, hand out",
    "gpu": "GPU: the step itself",
}
HOST_AND_GPU = ("host", "GPU")
BOX = 0.8
ROUNDING = 1e-6  # microseconds by which two boxes may overlap, and still follow one another


@styled
def draw_schedules(
    schedules: Mapping[str, Sequence[Busy]],
    notes: Mapping[str, str] | None = None,
    end: float | None = None,
    words: Mapping[str, str] = WORDS,
) -> Figure:
    """Draw when the host and the GPU work, two lanes per schedule, by name, all on one clock; each box has
    its step's number. Boxes of a lane that overlap in time stand one below the other.

    notes: a line of text under a schedule's name. end: where the clock ends, in microseconds. words: the
    legend's, by the kind of work; a decode step's by default.
    """
    fig, all_axes = panels(0.9 + 1.25 * len(schedules), len(schedules), sharex=True)
    end = end or max(busy.end for schedule in schedules.values() for busy in schedule)
    for axes, (name, schedule) in zip(all_axes, schedules.items(), strict=True):
        for row, lane in enumerate(HOST_AND_GPU):
            box(axes, (0, row - BOX / 2), end, BOX, fc=PALE, lw=0)
            boxes = [busy for busy in schedule if busy.lane == lane and busy.start < end]
            levels = list(_levels(boxes))
            height = BOX / (max(levels, default=0) + 1)
            for busy, level in zip(boxes, levels, strict=True):
                top, width = row - BOX / 2 + level * height, min(busy.end, end) - busy.start
                shade = WORK[busy.work][busy.step % 2]
                box(axes, (busy.start, top), width, height, fc=shade, ec="white", lw=0.8)
                if width > 0.018 * end:  # wide enough for a number
                    place, ink = (busy.start + width / 2, top + height / 2), "white" if shade == BLUE else INK
                    write(axes, *place, str(busy.step), fontsize=9, color=ink)
        axes.set_xlim(0, end)
        name_rows(axes, HOST_AND_GPU)
        bare(axes)
        axes.set_title(f"{name}{': ' if (notes or {}).get(name) else ''}{(notes or {}).get(name, '')}")
    all_axes[-1].set_xlabel("microseconds")
    key_below(fig, {text: WORK[work][0] for work, text in words.items()} | {"waits": PALE}, 4)
    return fig


def _levels(boxes: Sequence[Busy]) -> Iterator[int]:
    """For each box, the first level on which the one before it has ended: 0 for all, unless they overlap."""
    ends: list[float] = []
    for busy in boxes:
        level = next((i for i, last in enumerate(ends) if last <= busy.start + ROUNDING), len(ends))
        ends[level : level + 1] = [busy.end]
        yield level


ROW_OF = {"host": 1, "GPU": 0}


@styled
def draw_launches(kernels: int, eager_us: float, graph_us: float, gpu_us: float, shown: int = 30) -> Figure:
    """Draw the beginning of a decode step twice, to scale: its kernels launched one by one, and as one CUDA
    graph.

    kernels: how many the step has. eager_us, graph_us: microseconds that each of the two steps took as a
    whole; gpu_us: of them, the kernels' own. All launches are drawn as if they took the same time, and so are
    all kernels: only the sums are measured. shown: how many launches are drawn.
    """
    fig, (eager, graph) = figure(3.5, rows=2, sharex=True)
    launch, kernel = eager_us / kernels, gpu_us / kernels
    end = min(shown, kernels) * launch
    starts = launch * np.arange(min(shown, kernels))
    _draw_lane(eager, "host", starts, 0.85 * launch, ORANGE)
    _draw_lane(eager, "GPU", starts + 0.85 * launch, min(kernel, launch), BLUE)
    busy = min(1.0, gpu_us / eager_us)
    eager.set_title(
        f"Launched one by one: {kernels} kernels in {eager_us:,.0f} µs, GPU busy {100 * busy:.0f} %"
    )
    _draw_lane(graph, "host", np.array([0.0]), launch, ORANGE)
    starts = kernel * np.arange(kernels)
    _draw_lane(graph, "GPU", 0.85 * launch + starts[starts < end], 0.85 * kernel, BLUE)
    graph.set(title=f"One replay: the same {kernels} kernels in {graph_us:,.0f} µs", xlim=(0, end))
    graph.xaxis.set_major_formatter("{x:,.0f}")
    graph.set_xlabel(
        f"microseconds from the step's start (shown: the time of {min(shown, kernels)} launches)"
    )
    return fig


def _draw_lane(axes: Axes, lane: str, starts: np.ndarray, width: float, shade: str) -> None:
    spans = [(start, width) for start in starts.tolist()]
    axes.broken_barh(spans, (ROW_OF[lane] - HEIGHT / 2, HEIGHT), facecolors=shade)
    axes.set_yticks(list(ROW_OF.values()), list(ROW_OF))
    axes.set_ylim(-0.6, 1.6)


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


def bars(spans: Sequence[ProfiledSpan]) -> list[tuple[float, float]]:
    """(start, duration) of each span in milliseconds, as `broken_barh` takes them."""
    return [(span.start / 1e3, span.duration / 1e3) for span in spans]


class JoinStep(NamedTuple):
    """A step: the rows that it computes, and in it by request: "token", "waits" or "prompt"."""

    rows: int
    states: Mapping[int, str]


REQUEST_STATES = {
    "token": (BLUE, "", "runs, and gets a token"),
    "waits": (ORANGE, "//", "runs, and gets none"),
    "prompt": (GREEN, "..", "its prompt is computed"),
}


@styled
def draw_joins(runs: Mapping[str, Sequence[JoinStep]], notes: Mapping[str, str] | None = None) -> Figure:
    """Draw each run's steps as columns, one behind the other, each as wide as the rows that it sends through
    the layers; a line per request.

    notes: text behind a run's name. Raises ValueError if there is no run.
    """
    requests = {name: sorted({r for step in steps for r in step.states}) for name, steps in runs.items()}
    heights = [max(1, len(ids)) for ids in requests.values()]
    fig, all_axes = panels(
        1.1 + 0.6 * len(runs) + 0.3 * sum(heights), len(runs), sharex=True, height_ratios=heights
    )
    for axes, (name, steps) in zip(all_axes, runs.items(), strict=True):
        start = 0
        for step in steps:
            for line, request in enumerate(requests[name]):
                if request in step.states:
                    face, hatch, _ = REQUEST_STATES[step.states[request]]
                    corner = start, line - 0.35
                    box(axes, corner, step.rows, 0.7, fc=face, hatch=hatch, ec="white", lw=0.4)
            start += step.rows
            axes.axvline(start, color=INK, lw=0.5)
        name_rows(axes, [f"request {request}" for request in requests[name]])
        axes.tick_params(axis="y", length=0)
        note = (notes or {}).get(name, "")
        axes.set_title(f"{name}{': ' if note else ''}{note}")
    all_axes[-1].set_xlim(0, 1.01 * max(sum(step.rows for step in steps) for steps in runs.values()))
    all_axes[-1].set_xlabel("rows through the layers, step by step (a line is the end of a step)")
    looks = {
        label: {"facecolor": face, "hatch": hatch, "edgecolor": "white"}
        for face, hatch, label in REQUEST_STATES.values()
    }
    key_below(fig, looks, 3)
    return fig


DARK = (BLUE, GREEN, RED)  # of SERIES: white is read on them


@styled
def draw_packing(lengths: Sequence[int], max_tokens: int) -> Figure:
    """Draw prompts of so many tokens twice, to one scale: a row per prompt, each padded to the longest; and
    packed behind each other into chunks of `max_tokens` rows, the last of which may be shorter.

    Raises ValueError if there is no prompt.
    """
    longest, total = max(lengths), sum(lengths)
    chunks = chunks_of(lengths, max_tokens)
    width = 1.02 * max(longest, max_tokens)
    heights = [len(lengths), len(chunks)]
    fig, (padded, packed) = figure(1.9 + 0.3 * sum(heights), 2, height_ratios=heights, sharex=True)
    for row, length in enumerate(lengths):
        _box(padded, row, 0, length, row, width)
        if length < longest:
            box(padded, (length, row - 0.35), longest - length, 0.7, fc="white", ec=GREY, hatch="///", lw=0.6)
    for row, chunk in enumerate(chunks):
        for prompt, first, end in chunk:
            _box(packed, row, first, end, prompt, width)
    pads = len(lengths) * longest - total
    padded.set_title(f"Padded: {len(lengths) * longest:,} rows for {total:,} tokens, {pads:,} of them pads")
    packed.set_title(f"Packed: {total:,} rows, in {len(chunks)} chunks of at most {max_tokens:,}")
    for axes, nouns, count in ((padded, "prompt", len(lengths)), (packed, "chunk", len(chunks))):
        axes.set(xlim=(0, width), ylim=(count - 0.5, -0.5))
        axes.set_yticks(range(count), [str(i) for i in range(count)])
        axes.set_ylabel(nouns)
        bare(axes)
    packed.set_xlabel("rows through the layers (tokens)")
    pad = {"facecolor": "white", "edgecolor": GREY, "hatch": "///"}
    key_below(fig, {"tokens of a prompt, a colour each": SERIES[0], "pads": pad}, 2)
    return fig


def _box(axes: Axes, row: int, first: int, end: int, prompt: int, width: float) -> None:
    face = SERIES[prompt % len(SERIES)]
    box(axes, (first, row - 0.35), end - first, 0.7, fc=face, ec="white", lw=0.8)
    if end - first > 0.05 * width:
        ink = "white" if face in DARK else INK
        write(axes, (first + end) / 2, row, f"{prompt}", fontsize=8.5, color=ink)


def chunks_of(lengths: Sequence[int], max_tokens: int) -> list[list[tuple[int, int, int]]]:
    """Prompt, first row and end of each piece, by chunk: first come, first served."""
    chunks: list[list[tuple[int, int, int]]] = [[]]
    room = max_tokens
    for prompt, length in enumerate(lengths):
        while length:
            if not room:
                chunks.append([])
                room = max_tokens
            count = min(length, room)
            chunks[-1].append((prompt, max_tokens - room, max_tokens - room + count))
            length, room = length - count, room - count
    return chunks


class Stretch(NamedTuple):
    """What was done in a lane from `start` to `end`, in milliseconds since the client began."""

    lane: str
    work: str
    start: float
    end: float


@styled
def draw_request(stretches: Sequence[Stretch]) -> Figure:
    """Draw the stretches of one request: a row per lane, in the order in which they are named, a colour per
    kind of work. Raises ValueError if there is none."""
    lanes = list(dict.fromkeys(stretch.lane for stretch in stretches))
    works = list(dict.fromkeys(stretch.work for stretch in stretches))
    end = max(stretch.end for stretch in stretches)
    fig, axes = figure(1.3 + 0.5 * len(lanes))
    for row in range(len(lanes)):
        box(axes, (0, row - HEIGHT / 2), end, HEIGHT, fc=PALE, lw=0)
    for lane, work, start, stop in stretches:
        corner = start, lanes.index(lane) - HEIGHT / 2
        box(axes, corner, max(stop - start, VISIBLE * end), HEIGHT, fc=colour(works.index(work)), lw=0)
    axes.set_xlim(0, end)
    name_rows(axes, lanes)
    bare(axes)
    axes.set_xlabel("milliseconds since the client began to send")
    axes.set_title(f"One request, from the socket to the model: {end:,.0f} ms")
    key_below(fig, {work: colour(i) for i, work in enumerate(works)}, 4)
    return fig
