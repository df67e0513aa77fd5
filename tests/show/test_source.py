"""The package's source and its differences, as a reader sees them."""

import re

import pytest

from labkit import show
from labkit.kvcache import CachedBlockTables, RebuiltBlockTables
from labkit.paths import ROOT
from labkit.show.source import Diff


def test_source_is_the_packages_own():
    shown = show.show_source(RebuiltBlockTables.fill).data
    assert shown.startswith("`labkit/kvcache/block_tables.py`\n```python\ndef fill(")
    assert "torch.tensor(rows, dtype=torch.int32)" in shown
    assert str(ROOT) not in shown


def test_source_of_a_decorated_function_is_its_own():
    shown = show.show_source(show.draw_turns).data
    assert shown.startswith("`labkit/show/lines.py`\n```python\n@styled\ndef draw_turns(")


PATH = "labkit/kvcache/block_tables.py"


def test_a_diff_as_text_goes_from_the_first_to_the_second():
    before, after, *body = repr(show.show_diff(RebuiltBlockTables.fill, CachedBlockTables.fill)).splitlines()
    assert before == f"RebuiltBlockTables.fill in {PATH}"
    assert after == f"→ CachedBlockTables.fill in {PATH}"
    assert "-        rows = []" in body
    assert "     for layer_idx in range(self.kv_manager.num_layers):" in body
    assert "+        torch.stack(rows, out=block_tables_cpu[layer_idx])" in body
    assert body.index("-        rows = []") < body.index("+        rows = [")


def diff(before, after):
    return Diff((("A.f", "a.py"), ("B<int>", "b.py")), before.splitlines(), after.splitlines())


def without_styles(shown):
    """What is left where styles and classes are taken away, as on GitHub."""
    return re.sub(r' style="[^"]*"|</?span[^>]*>', "", shown)


def test_changed_words_are_marked_in_both_lines_and_the_rest_is_left():
    shown = diff("def f(x):\n    return x + 1", "def f(x):\n    return y + 1")._repr_html_()
    assert without_styles(shown) == (
        "<code>A.f</code> in <code>a.py</code> → <code>B&lt;int&gt;</code> in <code>b.py</code>\n"
        "<pre> def f(x):\n-    return <b>x</b> + 1\n+    return <b>y</b> + 1\n</pre>"
    )


def test_a_marked_piece_ends_with_its_line_and_code_stays_code():
    before, after = "a = f(b < 1,\n      rows, c)", "a = f(d & 2,\n      rows, e)\ng = 3"
    shown = without_styles(diff(before, after)._repr_html_())
    assert "-a = f(<b>b &lt; 1</b>,\n-      rows, <b>c)</b>\n" in shown
    assert "+a = f(<b>d &amp; 2</b>,\n+      rows, <b>e)</b>\n+<b>g = 3</b>\n" in shown


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        ("rows = []", "torch.stack(tables)", "-rows = []\n+torch.stack(tables)\n"),
        ("a\nb", "a", " a\n-b\n"),
        ("a", "a\n\nb", " a\n+\n+b\n"),
        ("a", "a", " a\n"),
    ],
    ids=["nothing in common", "only removed", "only added", "no change"],
)
def test_lines_that_have_no_counterpart_are_not_marked(before, after, lines):
    assert f"<pre>{lines}</pre>" in without_styles(diff(before, after)._repr_html_())


def test_what_sanitizers_refuse_is_not_needed():
    """Untrusted, a notebook keeps the plainest tags and styles: no class, no variable."""
    shown = show.show_diff(RebuiltBlockTables.fill, CachedBlockTables.fill)._repr_html_()
    assert set(re.findall(r"</?(\w+)", shown)) == {"code", "pre", "span", "b"}
    assert "class=" not in shown and "var(" not in shown
