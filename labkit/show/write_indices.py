"""What the host tells the GPU about one layer's write: tensors, numbers, or nothing."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from labkit.show.style import BLUE, INK, PALE, figure, styled

INDICES = ("batch_idx", "block_idx", "pos")
MOST_REQUESTS = 16  # with more, a cell is too narrow for its number
Told = Mapping[str, Sequence[int] | int]  # by the index's name: a tensor's numbers, or one number


@styled
def draw_write_indices(ways: Mapping[str, Told]) -> Figure:
    """Draw what the host tells the GPU about one layer's write, a group per way of writing, by its title:
    each index is a strip with a cell per request.

    ways: for each way, the indices that the host tells, by name: a list is a tensor that is copied to the
    GPU, a number is an argument of the kernel, and what is missing the kernel knows by itself. Raises
    ValueError for a batch of more than MOST_REQUESTS requests.
    """
    batch_size = max(len(value) for told in ways.values() for value in told.values() if is_tensor(value))
    if batch_size > MOST_REQUESTS:
        raise ValueError(f"{batch_size} requests are too many to draw; the most is {MOST_REQUESTS}")
    rows_each = len(INDICES) + 1.4  # with the title
    height = rows_each * len(ways)
    fig, axes = figure(0.2 + 0.27 * height)
    titles = [f"{way}: {_num_tensors(told)}" for way, told in ways.items()]
    fig.set_label(". ".join(titles))
    for group, (title, told) in enumerate(zip(titles, ways.values(), strict=True)):
        top = -rows_each * group
        axes.text(0, top, title, weight="bold", va="center")
        for row, name in enumerate(INDICES, start=1):
            _draw_index(axes, top - row, name, told.get(name), batch_size)
    axes.set_xlim(-1.8, batch_size + 5.6)
    axes.set_ylim(0.7 - height, 0.7)
    axes.axis("off")
    return fig


def is_tensor(value: Sequence[int] | int) -> bool:
    """Whether an index is told as a tensor: a list of numbers, not one number."""
    return not isinstance(value, int)


def _num_tensors(told: Told) -> str:
    number = sum(map(is_tensor, told.values()))
    return f"{number} index tensor{'' if number == 1 else 's'}"


def _draw_index(axes: Axes, y: float, name: str, value: Sequence[int] | int | None, batch_size: int) -> None:
    beside = {"va": "center", "fontsize": 9, "color": INK}
    axes.text(-0.2, y, name, ha="right", **beside)
    if value is None:
        axes.text(0.5, y, "–", ha="center", **beside)
        said = "nothing: row b is request b"
    elif is_tensor(value):
        for i, number in enumerate(value):
            _draw_cell(axes, i, y, number, BLUE, 0.3)
        said = "a tensor: made, copied, waited for"
    else:
        _draw_cell(axes, 0, y, value, PALE, 1.0)
        said = "a number: an argument of the kernel"
    axes.text(batch_size + 0.3, y, said, **beside)


def _draw_cell(axes: Axes, x: float, y: float, number: int, shade: str, alpha: float) -> None:
    axes.add_patch(Rectangle((x, y - 0.42), 1, 0.84, facecolor=shade, alpha=alpha, lw=0))
    axes.add_patch(Rectangle((x, y - 0.42), 1, 0.84, fill=False, edgecolor=INK, lw=0.6))
    axes.text(x + 0.5, y, str(number), ha="center", va="center", fontsize=8.5)
