"""Where the shape of a model comes from: inline, path, settings, project, HF cache, catalog, hub, in this order."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from memlint.models import resolve as resolve_module
from memlint.models.cache import cache_folder, cached_config
from memlint.models.resolve import Resolved, resolve_model

SMALL = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the cache, the token or the hub of this machine."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME", "HF_TOKEN", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf_home"))
    monkeypatch.setattr(resolve_module, "_FETCHED", {})


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / ".git").mkdir(parents=True)
    (folder / "configs").mkdir()
    return folder


def write(path: Path, config: Mapping[str, Any] = SMALL, **changes: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**config, **changes}), encoding="utf-8")
    return path


def cache(
    tmp_path: Path, model_id: str, config: Mapping[str, Any], *, ref: bool = True, commit: str = "abc123"
) -> Path:
    folder = tmp_path / "hf_home" / "hub" / ("models--" + model_id.replace("/", "--"))
    blob = write(folder / "blobs" / commit, config)
    (folder / "snapshots" / commit).mkdir(parents=True)
    (folder / "snapshots" / commit / "config.json").symlink_to(blob)
    if ref:
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / "main").write_text(commit)
    return folder


def resolve(ref: str | Mapping[str, Any], project: Path, **more: Any) -> Resolved:
    options: dict[str, Any] = {
        "base_dir": str(project / "configs"),
        "settings_models": {},
        "search_root": str(project),
        "offline": True,
        **more,
    }
    return resolve_model(ref, **options)


def source(found: Resolved) -> str | None:
    return found.architecture.source if found.architecture is not None else None


class TestPaths:
    def test_an_inline_config(self, project: Path) -> None:
        assert source(resolve(SMALL, project)) == "inline"

    @pytest.mark.parametrize("ref", ["./models/tiny", "models/tiny", "models/tiny/config.json", "models/tiny/"])
    def test_a_folder_or_its_config_seen_from_the_working_directory(self, ref: str, project: Path) -> None:
        write(project / "models" / "tiny" / "config.json")
        found = resolve(ref, project)
        assert source(found) == "path"
        assert found.file == str(project / ref) or os.path.samefile(
            str(found.file), project / "models/tiny/config.json"
        )

    def test_a_path_beside_the_config_that_names_it(self, project: Path) -> None:
        write(project / "configs" / "tiny" / "config.json")
        assert source(resolve("tiny", project)) == "path"

    def test_a_folder_wins_over_an_id_as_in_transformers(self, project: Path) -> None:
        write(project / "gpt2" / "config.json")
        assert source(resolve("gpt2", project)) == "path"

    @pytest.mark.parametrize("ref", ["../outside", "{outside}", "configs/../../outside", "link"])
    def test_nothing_outside_the_repository_is_read(self, ref: str, project: Path) -> None:
        outside = write(project.parent / "outside" / "config.json").parent
        (project / "link").symlink_to(outside)
        found = resolve(ref.format(outside=outside), project)
        assert found.architecture is None
        assert found.reason is not None
        assert found.file is None

    def test_what_the_user_names_may_lie_anywhere(self, project: Path) -> None:
        outside = write(project.parent / "outside" / "config.json").parent
        assert source(resolve(str(outside), project, trusted=True)) == "path"

    @pytest.mark.parametrize("ref", ["./output/checkpoint-500", "/mnt/models/llama", "C:\\models\\llama", "model.json"])
    def test_a_path_that_leads_nowhere_asks_for_a_config(self, ref: str, project: Path) -> None:
        reason = resolve(ref, project).reason
        assert reason is not None
        assert "`models` setting" in reason

    @pytest.mark.parametrize("ref", ["${MODEL}", "{{ model }}", "models/${NAME}", "<your-model>"])
    def test_a_placeholder_is_called_one(self, ref: str, project: Path) -> None:
        assert "is a placeholder that is filled in before the run" in (resolve(ref, project).reason or "")

    @pytest.mark.parametrize("ref", ["a\0b", "x" * 5000, "/" * 5000, "../" * 500])
    def test_hostile_names_are_answered_in_a_sentence(self, ref: str, project: Path) -> None:
        found = resolve(ref, project)
        assert found.architecture is None
        assert found.reason

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            (b"{", "is not JSON (line 1, column 2)"),
            (b"[1, 2]", "is not a JSON mapping"),
            (b"\xff\xfe\x00", "is not UTF-8"),
            (b"[" * 100_000, "is nested too deeply"),
            (b'{"model_type": "llama", "x": "' + b"a" * (5 << 20) + b'"}', "is larger than 4 MiB"),
        ],
        ids=["broken", "list", "bytes", "deep", "large"],
    )
    def test_a_broken_config_file_is_named(self, content: bytes, words: str, project: Path) -> None:
        path = project / "tiny" / "config.json"
        path.parent.mkdir()
        path.write_bytes(content)
        reason = resolve("./tiny", project).reason
        assert reason is not None
        assert words in reason

    def test_a_pipe_is_not_waited_for(self, project: Path) -> None:
        (project / "tiny").mkdir()
        os.mkfifo(project / "tiny" / "config.json")
        assert resolve("./tiny", project).architecture is None

    def test_an_unsound_config_carries_its_problems(self, project: Path) -> None:
        write(project / "tiny" / "config.json", hidden_size=-3)
        found = resolve("./tiny", project)
        assert [problem.key for problem in found.problems] == [("hidden_size",)]
        assert found.reason is not None
        assert "config.json" in found.reason

    def test_a_byte_order_mark_is_no_mistake(self, project: Path) -> None:
        path = project / "tiny" / "config.json"
        path.parent.mkdir()
        path.write_bytes(b"\xef\xbb\xbf" + json.dumps(SMALL).encode())
        assert source(resolve("./tiny", project)) == "path"


class TestOrder:
    """Every later source is there as well, and the earlier one is taken."""

    def test_settings_before_project_before_cache_before_catalog(self, project: Path, tmp_path: Path) -> None:
        model = "Qwen/Qwen3-8B"
        assert source(resolve(model, project)) == "catalog"
        cache(tmp_path, model, {**SMALL, "num_hidden_layers": 5})
        found = resolve(model, project)
        assert source(found) == "cache"
        assert found.architecture is not None
        assert found.architecture.num_hidden_layers == 5
        write(project / ".memlint" / "models" / "Qwen__Qwen3-8B.json", num_hidden_layers=6)
        found = resolve(model, project)
        assert source(found) == "project"
        assert found.architecture is not None
        assert found.architecture.num_hidden_layers == 6
        given = write(tmp_path / "elsewhere.json", num_hidden_layers=7)
        found = resolve(model, project, settings_models={model: str(given)})
        assert source(found) == "settings"
        assert found.architecture is not None
        assert found.architecture.num_hidden_layers == 7
        assert found.architecture.id == model

    def test_a_setting_that_leads_nowhere_is_said_and_not_passed_over(self, project: Path) -> None:
        found = resolve("Qwen/Qwen3-8B", project, settings_models={"Qwen/Qwen3-8B": "/nowhere"})
        assert found.architecture is None
        assert found.reason is not None
        assert "`models` setting of `Qwen/Qwen3-8B`" in found.reason

    def test_a_saved_config_is_found_from_a_folder_below_the_repository(self, project: Path) -> None:
        write(project / ".memlint" / "models" / "me__mine.json")
        found = resolve("me/mine", project, base_dir=str(project / "configs"), search_root=str(project / "configs"))
        assert source(found) == "project"

    def test_a_saved_config_that_leads_out_of_the_repository_is_not_read(self, project: Path) -> None:
        outside = write(project.parent / "outside" / "config.json")
        (project / ".memlint" / "models").mkdir(parents=True)
        (project / ".memlint" / "models" / "me__mine.json").symlink_to(outside)
        found = resolve("me/mine", project)
        assert found.architecture is None
        assert found.file is None


class TestCache:
    def test_a_snapshot_of_main(self, project: Path, tmp_path: Path) -> None:
        cache(tmp_path, "me/mine", SMALL)
        assert source(resolve("me/mine", project)) == "cache"

    def test_the_only_snapshot_serves_without_a_ref(self, project: Path, tmp_path: Path) -> None:
        cache(tmp_path, "me/mine", SMALL, ref=False)
        assert source(resolve("me/mine", project)) == "cache"

    def test_one_of_several_snapshots_is_not_guessed(self, project: Path, tmp_path: Path) -> None:
        cache(tmp_path, "me/mine", SMALL, ref=False)
        cache(tmp_path, "me/mine", SMALL, ref=False, commit="def456")
        assert resolve("me/mine", project).architecture is None

    def test_a_broken_link_counts_as_absent(self, project: Path, tmp_path: Path) -> None:
        folder = cache(tmp_path, "Qwen/Qwen3-8B", SMALL)
        (folder / "blobs" / "abc123").unlink()
        assert source(resolve("Qwen/Qwen3-8B", project)) == "catalog"

    def test_a_damaged_file_falls_back_to_the_catalog(self, project: Path, tmp_path: Path) -> None:
        folder = cache(tmp_path, "Qwen/Qwen3-8B", SMALL)
        (folder / "blobs" / "abc123").write_text("{")
        assert source(resolve("Qwen/Qwen3-8B", project)) == "catalog"

    def test_no_cache_leaves_the_answer_to_the_repository_and_the_catalog(
        self, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        from memlint.__main__ import main

        cache(tmp_path, "Qwen/Qwen3-8B", SMALL)
        (project / "job.yaml").write_text("memlint: 1\nmodel: Qwen/Qwen3-8B\n")
        monkeypatch.chdir(project)
        sources = []
        for more in ([], ["--no-cache"]):
            main(["check", "job.yaml", "--offline", "--output-format", "json", "--exit-zero", *more])
            sources.append(json.loads(capsys.readouterr()[0])["files"][0]["estimate"]["model"]["source"])
        assert sources == ["cache", "catalog"]

    def test_a_ref_cannot_lead_out_of_the_cache(self, tmp_path: Path, project: Path) -> None:
        folder = cache(tmp_path, "me/mine", SMALL)
        (folder / "refs" / "main").write_text("../../../../project/secret")
        write(project / "secret" / "config.json")
        found = resolve("me/mine", project)
        assert found.architecture is None or found.architecture.source == "cache"
        path = cached_config("me/mine")
        assert path is None or "secret" not in path

    @pytest.mark.parametrize(
        ("environment", "folder"),
        [
            ({"HF_HUB_CACHE": "/a"}, "/a"),
            ({"HUGGINGFACE_HUB_CACHE": "/b"}, "/b"),
            ({"HF_HOME": "/c"}, "/c/hub"),
            ({"XDG_CACHE_HOME": "/d"}, "/d/huggingface/hub"),
            ({"HF_HUB_CACHE": "/a", "HF_HOME": "/c"}, "/a"),
            ({}, os.path.expanduser("~/.cache/huggingface/hub")),
        ],
    )
    def test_where_the_cache_lies(self, environment: dict[str, str], folder: str) -> None:
        assert cache_folder(environment) == folder

    def test_the_layout_is_the_one_huggingface_hub_reads(self, tmp_path: Path) -> None:
        huggingface_hub = pytest.importorskip("huggingface_hub")
        cache(tmp_path, "me/mine", SMALL, commit="0" * 40)
        found = huggingface_hub.try_to_load_from_cache("me/mine", "config.json", cache_dir=tmp_path / "hf_home" / "hub")
        assert found == cached_config("me/mine")


class TestUnknown:
    def test_the_command_that_helps_is_named(self, project: Path) -> None:
        assert resolve("nobody/has-this-model", project).reason == (
            "the shape of `nobody/has-this-model` is not known offline:"
            " run `memlint models add nobody/has-this-model` once with a network"
        )

    @pytest.mark.parametrize(
        ("typo", "meant"),
        [
            ("Qwen/Qwen3-8b-Bse", "Qwen/Qwen3-8B-Base"),
            ("meta-lama/Llama-3.2-1B", "meta-llama/Llama-3.2-1B"),
            ("models/Llama-2-7b", "meta-llama/Llama-2-7b-hf"),
        ],
    )
    def test_a_near_miss_is_suggested(self, typo: str, meant: str, project: Path) -> None:
        reason = resolve(typo, project).reason
        assert reason is not None
        assert f"(did you mean `{meant}`?)" in reason

    def test_no_network_when_offline(self, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        import socket

        def refuse(*_: object, **__: object) -> None:
            raise AssertionError("the network was touched")

        monkeypatch.setattr(socket, "socket", refuse)
        assert resolve("nobody/has-this-model", project).architecture is None
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        assert resolve("nobody/has-this-model", project, offline=False).architecture is None
