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


def test_the_name_of_a_local_function_is_no_tag():
    shown = Diff((("f.<locals>.g", "a.py"), ("h", "a.py")), (), ())._repr_html_()
    assert shown.startswith("<code>f.&lt;locals&gt;.g</code> in ")
