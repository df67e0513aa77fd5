"""What the host sends to a device that keeps the state of each request itself (rung 06 and above)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from labkit.engine import InferenceEngine, InferenceSession
from labkit.engine.request import Request
from labkit.engine.step.resident import ResidentDecodeStep
from labkit.show.style import BLUE, GREEN, INK, ORANGE, PALE, PURPLE, figure, styled

OF_REQUESTS = ("step", "request", "slot", "tokens", "took", "sent")
OF_STEPS = ("step", "mapping", "states", "rows", "copies", "numbers")
SENT = {  # of a request, in a step: the colour and the words of the legend
    "nothing": (PALE, "nothing"),
    "boundary": (BLUE, "its row: one more block"),
    "copy_on_write": (ORANGE, "its row: its last block is a copy now"),
    "joined": (GREEN, "its row and its state: it joins"),
}
MAPPING = (PURPLE, "slot_mapping")


@dataclass(frozen=True)
class Sends:
    """What was sent in each decode step.

    requests: a line for each request of a step: its slot, the tokens it held when the step began, how the
    block of its next one was made ready, and what was sent of it, one of SENT. steps: a line a step: whether
    the mapping was sent, how many states and rows, and all of that in how many copies and numbers.
    """

    requests: pd.DataFrame
    steps: pd.DataFrame


class SendWatch:
    """Stands before an engine's `DeviceSlots` and notes what passes."""

    def __init__(self, step: ResidentDecodeStep) -> None:
        self.slots, self.block_size = step.slots, step.kv_manager.block_size
        self.requests: list[dict[str, object]] = []
        self.steps: list[dict[str, object]] = []
        self.step_number = 0
        self._sent: dict[str, list] = {}
        self._inner = {
            name: getattr(self.slots, name)
            for name in ("update", "_send_mapping", "_send_states", "send_rows")
        }
        for name in self._inner:
            setattr(self.slots, name, self._update if name == "update" else self._noting(name))
        self._send_inner = self.slots._staging.send
        self.slots._staging.send = self._send

    def take_off(self) -> None:
        for name in self._inner:
            delattr(self.slots, name)  # the class's own again
        del self.slots._staging.send

    def _noting(self, name: str) -> Callable[[Sequence], None]:
        def send(whom: Sequence) -> None:
            self._sent[name] = list(whom)
            self._inner[name](whom)

        return send

    def _send(self, numbers: Tensor) -> Tensor:
        self._sent.setdefault("copies", []).append(len(numbers))
        return self._send_inner(numbers)

    def _update(
        self,
        requests: Sequence[Request],
        sessions: list[InferenceSession],
        changed: Sequence[Sequence[int]],
    ) -> None:
        self._sent = {}
        self._inner["update"](requests, sessions, changed)
        states, rows = self._sent.get("_send_states", []), self._sent.get("send_rows", [])
        copies = self._sent.get("copies", [])
        counts = ("_send_mapping" in self._sent, len(states), len(rows), len(copies), sum(copies))
        self.steps.append(dict(zip(OF_STEPS, (self.step_number, *counts), strict=True)))
        dirty = {place for places in changed for place in places}
        for place, (request, session) in enumerate(zip(requests, sessions, strict=True)):
            took = "in_place"
            if place in dirty:
                took = "copy_on_write" if session.num_tokens % self.block_size else "boundary"
            sent = "joined" if request in states else took if session in rows else "nothing"
            about = (request.request_id, self.slots._slot_of[session], session.num_tokens, took, sent)
            self.requests.append(dict(zip(OF_REQUESTS, (self.step_number, *about), strict=True)))


def record_sends(engine: InferenceEngine, num_steps: int) -> Sends:
    """Run `num_steps` steps and note what the device is sent. Tokens made are not kept.

    Raises ValueError if the engine keeps no state on the device.
    """
    if not isinstance(engine.decode_step, ResidentDecodeStep):
        raise ValueError(f"block_tables = {engine.options.block_tables!r} keeps no state on the device")
    watch = SendWatch(engine.decode_step)
    try:
        for number in range(1, num_steps + 1):
            watch.step_number = number
            engine.step()
    finally:
        watch.take_off()
    return Sends(
        pd.DataFrame(watch.requests, columns=OF_REQUESTS), pd.DataFrame(watch.steps, columns=OF_STEPS)
    )


@styled
def draw_sends(sends: Sends) -> Figure:
    """A row a request and a column a step: what was sent of it; in a cell its slot, and a c where its last
    block was copied. Above, whether the mapping was sent; below, the numbers in all. A step that only
    admitted requests is an empty column.
    """
    requests = sorted(sends.requests["request"].unique())
    labels = ["slot_mapping", *(f"request {request}" for request in requests), "numbers sent"]
    fig, axes = figure(1.5 + 0.34 * len(labels))
    for line in sends.requests.itertuples():
        text = f"{line.slot} c" if line.took == "copy_on_write" else f"{line.slot}"
        _draw_cell(axes, line.step, 1 + requests.index(line.request), SENT[line.sent][0], text)
    for line in sends.steps.itertuples():
        _draw_cell(axes, line.step, 0, MAPPING[0] if line.mapping else PALE, "")
        sent = f"{line.numbers / 1e3:.1f}k" if line.numbers >= 1e3 else f"{line.numbers}"
        axes.text(line.step, len(labels) - 1, sent, ha="center", va="center", fontsize=8)
    axes.set_xlim(0.4, sends.steps["step"].max() + 0.6)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_yticks(range(len(labels)), labels)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.tick_params(left=False)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("step (in a cell: the request's slot; c: its last block was copied)")
    axes.set_title("What the host tells the device, step by step")
    seen = [SENT[sent] for sent in SENT if sent in set(sends.requests["sent"])]
    keys = [Patch(color=shade, alpha=0.8, label=words) for shade, words in (*seen, MAPPING)]
    fig.legend(handles=keys, loc="outside lower center", ncols=2)
    return fig


def _draw_cell(axes: Axes, x: float, y: float, shade: str, text: str) -> None:
    axes.add_patch(Rectangle((x - 0.46, y - 0.42), 0.92, 0.84, facecolor=shade, alpha=0.8, lw=0))
    axes.text(x, y, text, ha="center", va="center", fontsize=7.5, color=INK)
