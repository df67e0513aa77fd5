"""The kernel of the exercise on the page before lesson 03, as the package writes it."""

from labkit.kernels.triton_runtime import tl, triton


@triton.jit
def row_maxes(
    x_ptr, out_ptr, num_rows, num_columns, stride, BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr
):
    """Store the largest number of each row of x in `out`; each program does BLOCK_ROWS rows, in one tile.

    stride: from a row's first number to that of the next. BLOCK_COLUMNS: as many as there are, or more.
    """
    rows = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    columns = tl.arange(0, BLOCK_COLUMNS)
    places = rows[:, None] * stride + columns[None, :]
    inside = (rows[:, None] < num_rows) & (columns[None, :] < num_columns)
    x = tl.load(x_ptr + places, mask=inside, other=float("-inf"))
    tl.store(out_ptr + rows, tl.max(x, axis=1), mask=rows < num_rows)
