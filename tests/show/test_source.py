"""The package's source and its differences, as a reader sees them."""

from labkit import show
from labkit.kvcache import CachedBlockTables, RebuiltBlockTables
from labkit.paths import ROOT


def test_source_is_the_packages_own():
    shown = show.show_source(RebuiltBlockTables.fill).data
    assert shown.startswith("`labkit/kvcache/block_tables.py`\n```python\ndef fill(")
    assert "torch.tensor(rows, dtype=torch.int32)" in shown
    assert str(ROOT) not in shown


def test_source_of_a_decorated_function_is_its_own():
    shown = show.show_source(show.draw_limit).data
    assert shown.startswith("`labkit/show/roofline.py`\n```python\n@styled\ndef draw_limit(")


def test_a_diff_goes_from_the_first_to_the_second():
    shown = show.show_diff(RebuiltBlockTables.fill, CachedBlockTables.fill).data
    path = "labkit/kvcache/block_tables.py"
    names, *body = shown.splitlines()
    assert names == f"`RebuiltBlockTables.fill` in `{path}` → `CachedBlockTables.fill` in `{path}`"
    assert (body[0], body[-1]) == ("```diff", "```")
    assert "-        rows = []" in body
    assert "+        torch.stack(rows, out=block_tables_cpu[layer_idx])" in body
    assert not [line for line in body if line.startswith(("+++", "@@"))]
