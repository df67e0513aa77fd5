"""The package's source and its differences, as a reader sees them; notebooks compare what else they show."""

from labkit import show
from labkit.kernels.kv_append import _kv_append_kernel
from labkit.show.source import Diff


def test_source_of_a_decorated_function_is_its_own():
    shown = show.show_source(show.draw_curves).data
    assert shown.startswith("`labkit/show/lines.py`\n```python\n@styled\ndef draw_curves(")


def test_source_of_a_kernel_has_no_word_to_a_formatter():
    shown = show.show_source(_kv_append_kernel).data
    assert "k_cache_ptr, v_cache_ptr" in shown and "fmt: skip" not in shown


def test_a_diff_has_all_lines_with_their_signs_and_no_tag_of_its_own_in_a_name():
    made = Diff("f.<locals>.g in a.py", (" if a < b:", "-    a", "+    b"))
    assert repr(made) == "f.<locals>.g in a.py\n if a < b:\n-    a\n+    b"
    assert made._repr_html_().startswith("f.&lt;locals&gt;.g in a.py\n<pre")
    assert [line in made._repr_html_() for line in (" if a &lt; b:", "-    a", "+    b")] == [True] * 3
