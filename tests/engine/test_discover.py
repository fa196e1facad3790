"""Which files are read: folders are searched, named files always count, links never lead outside."""

from __future__ import annotations

import pytest

from memlint.engine.discover import discover
from memlint.errors import UserError
from memlint.settings.load import forget_settings


@pytest.fixture
def tree(tmp_path, monkeypatch):
    forget_settings()
    monkeypatch.chdir(tmp_path)
    for name in (
        "a.yaml",
        "b.yml",
        "c.json",
        "d.toml",
        "e.txt",
        "sub/f.yaml",
        ".github/g.yaml",
        "node_modules/h.yaml",
        "ve/pyvenv.cfg",
        "ve/i.yaml",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a: 1\n")
    return tmp_path


def names(*paths, isolated=False, force_exclude=False):
    found = discover(paths or (".",), isolated=isolated, force_exclude=force_exclude)
    return [item.path for item in found if item.skipped is None]


def test_folders_are_searched_for_configs_in_order(tree):
    assert names() == ["a.yaml", "b.yml", "c.json", "sub/f.yaml"]


def test_hidden_generated_and_virtual_environment_folders_are_left_out_unless_named(tree):
    assert names(".github") == [".github/g.yaml"]
    assert names("ve") == ["ve/i.yaml"]


def test_a_named_file_counts_whatever_its_ending(tree):
    assert names("e.txt", "a.yaml") == ["a.yaml", "e.txt"]


def test_a_file_reached_twice_is_checked_once(tree):
    assert names("sub", ".", "sub/f.yaml").count("sub/f.yaml") == 1


def test_absolute_paths_below_the_working_directory_are_shown_relative(tree):
    assert names(str(tree / "sub")) == ["sub/f.yaml"]


def test_settings_files_are_found_for_their_jobs(tree):
    (tree / "memlint.toml").write_text("")
    (tree / "sub" / "pyproject.toml").write_text("")
    assert "memlint.toml" in names()
    assert "sub/pyproject.toml" in names()


def test_include_and_exclude_of_the_settings(tree):
    (tree / "memlint.toml").write_text('include = ["*.txt", "*.yaml"]\nexclude = ["sub", "a.yaml"]\n')
    assert names() == []
    (tree / "memlint.toml").write_text('include = ["*.yaml"]\nexclude = ["a.yaml"]\n')
    forget_settings()
    assert names() == ["sub/f.yaml"]
    assert names(isolated=True) == ["a.yaml", "b.yml", "c.json", "memlint.toml", "sub/f.yaml"]


def test_exclude_reaches_named_files_only_with_force_exclude(tree):
    (tree / "memlint.toml").write_text('exclude = ["sub"]\n')
    assert names("sub/f.yaml") == ["sub/f.yaml"]
    assert names("sub/f.yaml", force_exclude=True) == []


def test_links_to_folders_are_not_followed_and_links_out_are_not_read(tree, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret.yaml").write_text("base_model: x\n")
    (tree / "link.yaml").symlink_to(outside / "secret.yaml")
    (tree / "inner.yaml").symlink_to(tree / "a.yaml")
    (tree / "folder").symlink_to(outside)
    found = {item.path: item.skipped for item in discover((".",), isolated=True, force_exclude=False)}
    assert found["link.yaml"] == "a link to a file outside the folder"
    assert found["inner.yaml"] is None
    assert not any(path.startswith("folder") for path in found)


def test_a_missing_path_is_a_users_mistake(tree):
    with pytest.raises(UserError, match=r"nothing\.yaml: no such file or folder"):
        discover(("nothing.yaml",), isolated=True, force_exclude=False)
