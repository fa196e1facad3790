"""memlint compare and memlint diff: component by component, as text, Markdown and JSON."""

from __future__ import annotations

import json
import subprocess

import pytest

from memlint.__main__ import main
from memlint.settings.load import forget_settings

BEFORE = """\
memlint: 1
model: meta-llama/Llama-3.2-1B
training:
  micro_batch_size: 8
  sequence_length: 2048
hardware: {target: A100-40GB}
"""
AFTER = BEFORE.replace("micro_batch_size: 8", "micro_batch_size: 2") + "# a comment\n"


def git(folder, *words):
    identity = ["-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def memlint(tmp_path, monkeypatch, capsys):
    forget_settings()
    monkeypatch.chdir(tmp_path)

    def run(*argv):
        code = main([str(word) for word in argv])
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def repository(tmp_path):
    """Three configs at HEAD: one changed since, one removed, one untouched; and one that is new."""
    git(tmp_path, "init", "-q", ".")
    (tmp_path / "configs").mkdir()
    for name in ("changed", "removed", "same"):
        (tmp_path / "configs" / f"{name}.yaml").write_text(BEFORE)
    (tmp_path / "ci.yaml").write_text("on: push\njobs: {}\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    (tmp_path / "configs" / "changed.yaml").write_text(AFTER)
    (tmp_path / "configs" / "removed.yaml").unlink()
    (tmp_path / "configs" / "new.yaml").write_text(AFTER)
    return tmp_path


class TestCompare:
    @pytest.fixture
    def pair(self, tmp_path):
        (tmp_path / "a.yaml").write_text(BEFORE)
        (tmp_path / "b.yaml").write_text(AFTER)
        return "a.yaml", "b.yaml"

    def test_parts_sum_to_the_peak_on_both_sides(self, memlint, pair):
        code, out, _ = memlint("compare", *pair, "--output-format", "json", "--offline")
        found = json.loads(out)
        assert code == 0
        for side in ("before", "after"):
            assert sum(found[side]["parts"].values()) == found[side]["device_bytes"]
        assert sum(found["change"]["parts"].values()) == found["change"]["device_bytes"]
        assert found["after"]["device_bytes"] - found["before"]["device_bytes"] == found["change"]["device_bytes"]

    def test_the_figures_are_those_of_estimate(self, memlint, pair):
        found = json.loads(memlint("compare", *pair, "--output-format", "json", "--offline")[1])
        for side, name in zip(("before", "after"), pair, strict=True):
            alone = json.loads(memlint("estimate", name, "--output-format", "json", "--offline")[1])
            assert found[side]["device_bytes"] == alone["peak"]["device_bytes"]
            assert found[side]["verdict"] == alone["verdict"]

    def test_settings_that_differ_are_named(self, memlint, pair):
        found = json.loads(memlint("compare", *pair, "--output-format", "json", "--offline")[1])
        assert found["settings"] == [{"field": "training.micro_batch_size", "before": 8, "after": 2}]

    def test_text_and_markdown(self, memlint, pair):
        _, text, _ = memlint("compare", *pair, "--offline")
        assert text.startswith("a.yaml -> b.yaml: predicted peak ")
        assert "usable on A100-40GB: fits, was out of memory" in text
        assert "\n  activations " in text
        assert "training.micro_batch_size: 8 -> 2" in text
        _, markdown, _ = memlint("compare", *pair, "--offline", "--output-format", "markdown")
        assert markdown.startswith("### Predicted GPU memory\n\n| config |")
        assert "| out of memory -> fits |" in markdown
        assert "<details><summary>a.yaml -&gt; b.yaml</summary>" in markdown

    def test_the_second_decides_the_exit_code(self, memlint, pair):
        assert memlint("compare", *pair, "--offline")[0] == 0
        assert memlint("compare", *reversed(pair), "--offline")[0] == 1

    def test_a_model_can_be_compared_with_a_config(self, memlint, pair):
        code, out, _ = memlint("compare", "Qwen/Qwen3-0.6B", pair[1], "--offline", "--target", "H200")
        assert code == 0
        assert "model: Qwen/Qwen3-0.6B -> meta-llama/Llama-3.2-1B" in out

    def test_names_from_a_config_cannot_write_markdown(self, memlint, tmp_path):
        name = "x|y [a](b) @me.yaml"
        (tmp_path / name).write_text(BEFORE)
        _, out, _ = memlint("compare", name, name, "--offline", "--output-format", "markdown")
        assert "| y" not in out.splitlines()[4]
        assert "@me" not in out
        assert "[a](b)" not in out.splitlines()[4]


class TestDiff:
    def test_changed_removed_and_new_configs_are_listed_and_no_other(self, memlint, repository):
        code, out, err = memlint("diff", "--offline", "--output-format", "json")
        assert (code, err) == (0, "")
        files = json.loads(out)["files"]
        assert [entry["name"] for entry in files] == [
            "configs/changed.yaml",
            "configs/new.yaml",
            "configs/removed.yaml",
        ]
        changed, new, removed = files
        assert changed["change"]["device_bytes"] < 0
        assert new["before"] is None
        assert removed["after"] is None

    def test_the_figures_are_those_of_compare(self, memlint, repository):
        (entry, *_) = json.loads(memlint("diff", "--offline", "--output-format", "json")[1])["files"]
        (repository / "old.yaml").write_text(BEFORE)
        alone = json.loads(
            memlint("compare", "old.yaml", "configs/changed.yaml", "--offline", "--output-format", "json")[1]
        )
        assert entry["change"] == alone["change"]

    def test_text_and_markdown(self, memlint, repository):
        _, text, _ = memlint("diff", "--offline")
        assert "configs/removed.yaml: removed, predicted peak " in text
        assert text.endswith("3 configs with another prediction than at HEAD.\n")
        _, markdown, _ = memlint("diff", "--offline", "--output-format", "markdown")
        assert "| configs/changed.yaml | " in markdown
        assert "| added | fits |" in markdown

    def test_one_path_from_a_folder_below(self, memlint, repository, monkeypatch):
        monkeypatch.chdir(repository / "configs")
        _, out, _ = memlint("diff", "changed.yaml", "--offline", "--output-format", "json")
        assert [entry["name"] for entry in json.loads(out)["files"]] == ["configs/changed.yaml"]

    def test_a_file_that_a_config_points_to_counts(self, memlint, repository):
        shape = {
            "model_type": "llama",
            "hidden_size": 256,
            "intermediate_size": 512,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "vocab_size": 1000,
        }
        (repository / "tiny").mkdir()
        (repository / "tiny" / "config.json").write_text(json.dumps(shape))
        (repository / "configs" / "local.yaml").write_text("memlint: 1\nmodel: ../tiny\ntraining: {}\n")
        git(repository, "add", ".")
        git(repository, "commit", "-qm", "second")
        (repository / "tiny" / "config.json").write_text(json.dumps({**shape, "num_hidden_layers": 8}))
        (entry,) = json.loads(memlint("diff", "--offline", "--output-format", "json")[1])["files"]
        assert entry["name"] == "configs/local.yaml"
        assert entry["change"]["device_bytes"] > 0

    def test_nothing_changed(self, memlint, repository):
        git(repository, "add", ".")
        git(repository, "commit", "-qm", "second")
        code, out, _ = memlint("diff", "--offline")
        assert (code, out) == (0, "0 configs with another prediction than at HEAD.\n")
        assert memlint("diff", "--offline", "--base", "HEAD~1")[1].startswith("configs/changed.yaml: ")
        assert "No prediction changes." in memlint("diff", "--offline", "--output-format", "markdown")[1]

    def test_a_changed_config_that_does_not_fit_exits_1(self, memlint, repository):
        path = repository / "configs" / "changed.yaml"
        path.write_text(path.read_text().replace("micro_batch_size: 2", "micro_batch_size: 16"))
        assert memlint("diff", "--offline")[0] == 1

    @pytest.mark.parametrize(
        ("argv", "message"),
        [
            (["--base", "nowhere"], "the repository has no revision `nowhere`"),
            (["--base=--output=x"], "--base takes a revision"),
            (["none.yaml"], "none.yaml: no such file or folder here or at HEAD"),
            (["/"], "compares files of this repository only"),
        ],
    )
    def test_mistakes_are_one_sentence(self, memlint, repository, argv, message):
        code, out, err = memlint("diff", *argv)
        assert (code, out) == (2, "")
        assert message in err
        assert not (repository / "x").exists()

    def test_files_are_held_in_memory_a_portion_at_a_time(self, memlint, repository, monkeypatch):
        from memlint.plan import base_tree

        whole = memlint("diff", "--offline", "--output-format", "json")[1]
        sizes = []
        contents = base_tree._contents

        def watched(blobs, root):
            found = contents(blobs, root)
            sizes.append(sum(map(len, found)))
            return found

        monkeypatch.setattr(base_tree, "_contents", watched)
        monkeypatch.setattr(base_tree, "PORTION", 2 * len(BEFORE))
        assert memlint("diff", "--offline", "--output-format", "json")[1] == whole
        assert len(sizes) > 1
        assert max(sizes) <= 2 * len(BEFORE)

    def test_a_file_that_the_repository_lacks_is_one_sentence(self, memlint, repository):
        """As in a clone with `--filter=blob:none` that can no longer reach its remote."""
        asked = ["git", "rev-parse", "HEAD:configs/removed.yaml"]
        blob = subprocess.run(asked, cwd=repository, capture_output=True, check=True, text=True).stdout.strip()
        (repository / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
        code, out, err = memlint("diff", "--offline")
        assert (code, out) == (2, "")
        assert "the repository lacks files of that revision" in err

    def test_outside_a_repository(self, memlint, tmp_path, monkeypatch):
        monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
        code, _, err = memlint("diff")
        assert code == 2
        assert "not a git repository" in err

    def test_the_working_tree_is_left_alone(self, memlint, repository):
        def state():
            return subprocess.run(
                ["git", "status", "--porcelain"], cwd=repository, capture_output=True, check=True
            ).stdout

        before = state()
        memlint("diff", "--offline")
        assert state() == before
