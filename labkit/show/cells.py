"""Figures of cells: the numbers of tensors, blocks and tables, and whose each is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from labkit.show.blocks import LONGEST_TEXT, cell_text
from labkit.show.colours import BLUE, GREY, INK, ORANGE, PALE, RED, colour
from labkit.show.lanes import Box, Rows, draw_boxes
from labkit.show.style import bare, box, figure, key_below, styled, write

COLOURS = {"A": BLUE, "B": ORANGE}


class PoolFrame(NamedTuple):
    """A pool at one moment: the number of the token in each slot of each block, 0 where none was written, and
    the letters of those that hold each block, "" for a free one."""

    title: str
    slots: tuple[tuple[int, ...], ...]  # [N][block_size]
    holders: tuple[str, ...]


def draw_pool_frames(rows: Mapping[str, Sequence[PoolFrame]], owners: Mapping[int, str]) -> Figure:
    """Draw the moments of several runs, a panel per run, by its title, and in it the moments side by side, a
    row per block, with the letters of its holders behind it.

    owners: the letter of the request that a token belongs to; a token that is nobody's own is grey. A token
    in a block that its owner does not hold is framed: whoever reads that block reads another's token.
    """
    shown: dict[str, Rows] = {}
    for name, frames in rows.items():
        num_blocks, block_size = len(frames[0].slots), len(frames[0].slots[0])
        boxes = []
        for moment, frame in enumerate(frames):
            left, right = moment * (block_size + 2.5), moment * (block_size + 2.5) + block_size
            boxes.append(Box(0, left - 1.2, right + 1.2, "none", frame.title))
            for block, (numbers, holders) in enumerate(zip(frame.slots, frame.holders, strict=True), start=1):
                for slot, number in enumerate(numbers):
                    owner = owners.get(number, "")
                    is_anothers = bool(owner) and bool(holders) and owner not in holders
                    face = (COLOURS[owner], 0.6) if owner else PALE if number else "none"
                    edge = {"edgecolor": RED, "lw": 2.5} if is_anothers else {"edgecolor": INK, "lw": 0.8}
                    look = {"facecolor": face} | edge
                    boxes.append(Box(block, left + slot, left + slot + 1, look, str(number or "")))
                boxes.append(Box(block, right + 0.1, right + 2.4, "none", " and ".join(holders) or "free"))
        shown[name] = ["", *(f"block {i}" for i in range(num_blocks))], boxes
    return draw_boxes(shown, "", {}, 1)


INDICES = ("batch_idx", "block_idx", "pos")
Told = Mapping[str, Sequence[int] | int]  # by the index's name: a tensor's numbers, or one number
TENSOR, NUMBER = {"facecolor": (BLUE, 0.3), "edgecolor": INK}, {"facecolor": PALE, "edgecolor": INK}


def draw_write_indices(ways: Mapping[str, Told]) -> Figure:
    """Draw what the host tells the GPU about one layer's write, a panel per way of writing, by its title:
    each index is a strip with a cell per request.

    ways: for each way, the indices that the host tells, by name: a list is a tensor that is copied to the
    GPU, a number is an argument of the kernel, and what is missing the kernel knows by itself.
    """
    tensors = {way: [v for v in told.values() if not isinstance(v, int)] for way, told in ways.items()}
    batch_size = max(len(each) for values in tensors.values() for each in values)
    shown: dict[str, Rows] = {}
    for way, told in ways.items():
        boxes = []
        for row, name in enumerate(INDICES):
            value = told.get(name)
            if value is None:
                boxes.append(Box(row, 0, batch_size, "none", "nothing: row b is request b"))
            elif isinstance(value, int):
                boxes.append(Box(row, 0, 1, NUMBER, str(value)))
            else:
                boxes += [Box(row, i, i + 1, TENSOR, str(number)) for i, number in enumerate(value)]
        number = len(tensors[way])
        shown[f"{way}: {number} index tensor{'' if number == 1 else 's'}"] = INDICES, boxes
    looks = {"a tensor: made, copied, waited for": TENSOR, "a number: an argument of the kernel": NUMBER}
    return draw_boxes(shown, "", looks, 2)


def draw_tables(tables: Mapping[str, Mapping[int, Sequence[Sequence[int]]]]) -> Figure:
    """Draw block tables as `watch.layer_tables` gives them, a panel per engine, by name, and a row per table:
    each block is a box with its place in the pool, in the colour of its request. A border marks what several
    requests share.
    """
    shown: dict[str, Rows] = {}
    looks = {}
    for name, of_requests in tables.items():
        boxes, left, num = [], 0.0, 1
        held = Counter((row, i) for rows in of_requests.values() for row, ids in enumerate(rows) for i in ids)
        for request_id, rows in of_requests.items():
            num, shade = len(rows), (colour(request_id), 0.45)
            looks[f"request {request_id}"] = {"facecolor": shade}
            for row, indices in enumerate(rows):
                for place, index in enumerate(indices):
                    look = {"facecolor": shade, "edgecolor": INK, "lw": 1.4 * (held[row, index] > 1)}
                    boxes.append(Box(row, left + place, left + place + 0.94, look, str(index)))
            left += len(rows[0]) + 0.6
        labels = [f"layer {i}" for i in range(num)] if num > 1 else ["all layers"]
        shown[f"{name}: {num} {'list' if num == 1 else 'lists'} of blocks per request"] = labels, boxes
    return draw_boxes(shown, "", looks, len(looks))


SEVERAL, ONE = ({"facecolor": (shade, 0.35), "edgecolor": INK, "lw": 1} for shade in (BLUE, ORANGE))
REST = {"facecolor": (GREY, 0.25), "lw": 0}


@styled
def draw_shared_blocks(texts: Mapping[str, Sequence[str]], block_size: int) -> Figure:
    """Draw texts by label, a row per text and a cell per token. A full block of neighbouring texts that are
    alike up to its end is one box over all of them: it is computed once. The rest of a text has no full
    block, and is its own.
    """
    rows = [tuple(tokens) for tokens in texts.values()]
    fig, axes = figure(1.0 + 0.42 * len(rows))
    for row, tokens in enumerate(rows):
        for start in range(0, len(tokens), block_size):
            begin, is_full = tokens[: start + block_size], start + block_size <= len(tokens)
            if is_full and row and rows[row - 1][: len(begin)] == begin:
                continue  # drawn with the text above
            num_rows = 1
            while is_full and rows[row + num_rows :] and rows[row + num_rows][: len(begin)] == begin:
                num_rows += 1
            look = REST if not is_full else SEVERAL if num_rows > 1 else ONE
            box(axes, (start, row + 0.08), len(begin) - start, num_rows - 0.16, **look)
            for place, token in enumerate(begin[start:], start):
                text = cell_text(token)
                size = 7.5 if len(text) < LONGEST_TEXT else 6
                write(axes, place + 0.5, row + num_rows / 2, text, fontsize=size)
    axes.set(xlim=(-0.1, max(map(len, rows)) + 0.1), ylim=(len(rows) + 0.1, -0.1))
    axes.set_yticks([row + 0.5 for row in range(len(rows))], list(texts))
    axes.set_xticks(range(0, max(map(len, rows)) + 1, block_size))
    axes.set_xlabel("position in the text, tokens")
    bare(axes)
    axes.set_title(f"Blocks of {block_size}: a box over several texts is computed and stored once")
    looks = {"a full block of several texts": SEVERAL, "a full block of one": ONE, "no full block": REST}
    key_below(fig, looks, 3)
    return fig


@styled
def draw_weights(
    tokens: Sequence[str],
    blocks: Sequence[int],
    block_size: int,
    yours: Sequence[float],
    expected: Sequence[float],
    title: str,
) -> Figure:
    """Draw how much each token counts for one head: your weights as bars, the expected ones as outlines, and
    below them the blocks in which the tokens lie.

    tokens: of the text, the new one last, which is in no block yet. blocks: the physical blocks of the text,
    in order.
    """
    fig, axes = figure(3.1)
    places = range(len(tokens))
    colours = [BLUE] * (len(tokens) - 1) + [ORANGE]
    axes.bar(places, yours, color=colours, width=0.7, label="yours")
    axes.bar(places, expected, fill=False, edgecolor=INK, lw=1.2, width=0.82, label="expected")
    axes.set_xticks(places, [cell_text(token) for token in tokens])
    axes.set_xlim(-0.7, max(len(tokens), len(blocks) * block_size) - 0.3)
    top = max(*yours, *expected)
    axes.set_ylim(-0.2 * top, 1.12 * top)
    for place, block in enumerate(blocks):
        box(axes, (place * block_size - 0.5, -0.17 * top), block_size, 0.13 * top, fc=PALE, ec=GREY)
        write(axes, place * block_size + block_size / 2 - 0.5, -0.105 * top, f"block {block}", fontsize=8)
    axes.set_xlabel("tokens of the text, and the new token (orange), whose key and value come with the call")
    axes.set_ylabel("weight (they add up to 1)")
    axes.tick_params(bottom=False)
    axes.set_title(title)
    axes.legend(loc="upper left")
    return fig
