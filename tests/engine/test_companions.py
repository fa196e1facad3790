"""Files that a config names are opened inside the repository only."""

from __future__ import annotations

import pytest

from memlint.document.load import load_documents
from memlint.engine.companions import Companions, repository_root


@pytest.fixture
def repository(tmp_path, monkeypatch):
    root = tmp_path / "repo"
    (root / ".git").mkdir(parents=True)
    (root / "configs").mkdir()
    (root / "ds.json").write_text('{"zero_optimization": {"stage": 2}}')
    (root / "configs" / "local.json").write_text('{"zero_optimization": {"stage": 3}}')
    (tmp_path / "secret.json").write_text('{"token": "x"}')
    monkeypatch.chdir(root)
    return root


def reader(root, **rest):
    return Companions(search_root=str(root), boundary=str(root), gpus=None, **rest)


def beside(root):
    return load_documents("a: 1\n", "configs/train.yaml")[0]


def test_working_directory_of_the_framework_comes_before_the_files_own_folder(repository):
    companions = reader(repository)
    assert companions.companion("ds.json", beside=beside(repository)).data["zero_optimization"]["stage"] == 2
    assert companions.companion("local.json", beside=beside(repository)).path == "configs/local.json"
    assert sorted(companions.opened) == ["configs/local.json", "ds.json"]


@pytest.mark.parametrize("path", ["../secret.json", "configs/../../secret.json", "/etc/passwd", "", "a\0b", "configs"])
def test_nothing_outside_the_repository_is_opened(repository, path):
    assert reader(repository).companion(path, beside=beside(repository)) is None


def test_a_link_out_of_the_repository_is_not_followed(repository, tmp_path):
    (repository / "sneaky.json").symlink_to(tmp_path / "secret.json")
    assert reader(repository).companion("sneaky.json", beside=beside(repository)) is None


def test_a_huge_companion_is_not_read(repository):
    (repository / "huge.json").write_text('{"a": "' + "x" * (1024 * 1024) + '"}')
    assert reader(repository).companion("huge.json", beside=beside(repository)) is None


def test_an_overlay_stands_in_for_a_file(repository):
    changed = load_documents('{"zero_optimization": {"stage": 3}}', "ds.json")[0]
    companions = reader(repository, overlays={"ds.json": changed})
    assert companions.companion("ds.json", beside=beside(repository)) is changed


def test_repository_root_is_the_nearest_folder_with_git(repository, tmp_path):
    assert repository_root(str(repository / "configs")) == str(repository)
    assert repository_root(str(tmp_path)) is None or repository_root(str(tmp_path)) != str(repository)
