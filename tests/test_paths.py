"""Where the project and its records are, whatever the working directory is."""

import pytest

from labkit import paths
from labkit.errors import ProjectError


def test_a_package_without_its_project_is_noticed_and_the_way_out_is_said(monkeypatch, tmp_path):
    assert paths.has_project() and paths.require_project() is None
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    assert not paths.has_project()
    with pytest.raises(ProjectError) as raised:
        paths.require_project()
    said = str(raised.value)
    assert said.startswith(f"labkit was installed without its project: {tmp_path} has the package alone")
    assert "Clone the project with git" in said and said.endswith("`pip install -e .`")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Intel(R) Core(TM) i7-1185G7 @ 3.00GHz", "intel_core_i7_1185g7_3_00ghz"),
        ("../../etc/passwd\0", "etc_passwd"),
        ("龙芯", "unknown"),
        ("a b" * 99, ("a_b" * 20)),
    ],
)
def test_a_slug_is_safe_in_any_file_system(name, expected):
    assert paths.slug(name) == expected
