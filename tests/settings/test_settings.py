"""Settings are found upward, read strictly, and cost nothing where there are none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest

from memlint.errors import UserError
from memlint.findings import Severity
from memlint.resources import schema_text
from memlint.settings.globs import matches
from memlint.settings.load import forget_settings, settings_for
from memlint.settings.model import Settings
from memlint.settings.validate import KEYS, OVERRIDE_KEYS


@pytest.fixture(autouse=True)
def fresh():
    forget_settings()
    yield
    forget_settings()


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_nearest_file_upward_wins(tmp_path):
    write(tmp_path, "memlint.toml", 'target = "A100-80GB"')
    write(tmp_path, "configs/inner/memlint.toml", 'target = "T4"')
    assert settings_for(str(tmp_path / "configs" / "inner")).target == "T4"
    assert settings_for(str(tmp_path / "configs")).target == "A100-80GB"


def test_pyproject_counts_only_with_our_table(tmp_path):
    write(tmp_path, "pyproject.toml", '[tool.memlint]\ntarget = "H100"\n')
    write(tmp_path, "sub/pyproject.toml", '[project]\nname = "memlint-user"\n')
    assert settings_for(str(tmp_path / "sub")).target == "H100"


def test_memlint_toml_wins_over_pyproject_in_the_same_folder(tmp_path):
    write(tmp_path, "pyproject.toml", '[tool.memlint]\ntarget = "H100"\n')
    write(tmp_path, "memlint.toml", 'target = "T4"\n')
    assert settings_for(str(tmp_path)).target == "T4"


def test_every_key_is_read(tmp_path):
    write(
        tmp_path,
        "memlint.toml",
        """
target = "A100-80GB"
select = ["MEM1", "checkpointing-off"]
ignore = ["MEM005"]
include = ["*.yaml"]
exclude = ["vendor"]
fail-on = "warning"
margin = 0.1
search-root = "work"
offline = true
baseline = "known.json"
[models]
"org/name" = "shapes/name"
[per-file-ignores]
"*.json" = ["MEM301"]
[training]
micro_batch_size = 2
[[overrides]]
files = ["big/**"]
target = "8xH100"
margin = 0.2
fail-on = "info"
ignore = ["MEM102"]
[[jobs]]
model = "org/name"
""",
    )
    settings = settings_for(str(tmp_path))
    assert settings.target == "A100-80GB"
    assert settings.select == ("MEM1", "checkpointing-off")
    assert settings.fail_on is Severity.WARNING
    assert settings.margin == 0.1
    assert settings.search_root == str(tmp_path / "work")
    assert settings.baseline == str(tmp_path / "known.json")
    assert settings.models == {"org/name": str(tmp_path / "shapes" / "name")}
    assert settings.training == {"micro_batch_size": 2}
    assert settings.jobs == ({"model": "org/name"},)
    assert settings.offline is True
    (override,) = settings.overrides_for("big/run/train.yaml")
    assert (override.target, override.margin, override.fail_on, override.ignore) == (
        "8xH100",
        0.2,
        Severity.INFO,
        ("MEM102",),
    )
    assert settings.overrides_for("small/train.yaml") == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'target = "T4"\ntargt = "T4"\n',
            "memlint.toml:2: unknown key `targt` in memlint.toml; did you mean `target`?",
        ),
        ("fail_on = 'error'\n", "did you mean `fail-on`?"),
        ("zzz = 1\n", "known keys: target, overrides"),
        ("margin = 1.5\n", "memlint.toml:1: `margin` is the share of usable memory kept free"),
        ("margin = true\n", "`margin` is the share"),
        ('\nfail-on = "never"\n', "memlint.toml:2: `fail-on` must be one of error, warning, info"),
        ("offline = 1\n", "`offline` must be true or false"),
        ('ignore = ["XYZ123"]\n', "`ignore`: no rule is called `XYZ123`; `memlint rules` lists them"),
        ('select = ["checkpointing-of"]\n', "did you mean `checkpointing-off`?"),
        ("target = 80\n", "`target` must be a non-empty string"),
        ('[[overrides]]\ntarget = "T4"\n', "every entry of `overrides` needs `files`"),
        ('[[overrides]]\nfiles = ["*"]\nmargn = 1\n', "memlint.toml:3: unknown key `margn` in overrides"),
        ("jobs = 3\n", "`jobs` must be an array of tables: [[jobs]]"),
        ("training = 3\n", "`training` must be a table"),
        ("target = \n", "memlint.toml: not valid TOML"),
    ],
)
def test_mistakes_are_one_sentence_with_place_and_remedy(tmp_path, monkeypatch, text, message):
    write(tmp_path, "memlint.toml", text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        settings_for(".")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value).replace(" (at line", "")


def test_line_of_a_mistake_in_pyproject_is_inside_our_table(tmp_path, monkeypatch):
    write(tmp_path, "pyproject.toml", "[tool.other]\nmargn = 1\n\n[tool.memlint]\nmargn = 0.1\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"pyproject.toml:5: unknown key `margn` in .tool.memlint.; did you mean"):
        settings_for(".")


def test_no_toml_parser_is_imported_without_settings(tmp_path):
    write(tmp_path, "pyproject.toml", '[project]\nname = "other"\n')
    code = "import sys; from memlint.settings.load import settings_for; settings_for('.');"
    code += "print(sorted({'tomllib', 'tomli', 'difflib', 're'} & set(sys.modules)))"
    path = {"PYTHONPATH": str(Path(__file__).parents[2])}
    result = subprocess.run([sys.executable, "-S", "-c", code], cwd=tmp_path, capture_output=True, text=True, env=path)
    assert "tomllib" not in result.stdout, result.stderr
    assert "difflib" not in result.stdout


def test_defaults_without_a_file(tmp_path):
    settings = settings_for(str(tmp_path))
    assert settings == Settings()
    assert settings.margin == 0.05
    assert settings.fail_on is Severity.ERROR


@pytest.mark.parametrize(
    ("path", "pattern", "expected"),
    [
        ("a/b/c.json", "*.json", True),
        ("a/b/c.json", "a/*.json", False),
        ("a/b/c.json", "a/**/*.json", True),
        ("a/c.json", "a/**/*.json", True),
        ("vendor/x/y.yaml", "vendor", True),
        ("my/vendor/y.yaml", "vendor/", True),
        ("my/vendor/y.yaml", "/vendor", False),
        ("vendor/y.yaml", "/vendor", True),
        ("my/vendored/y.yaml", "vendor", False),
        ("train-1.yaml", "train-[0-9].yaml", True),
        ("train-x.yaml", "train-[!0-9].yaml", True),
        ("train-1.yaml", "train-[!0-9].yaml", False),
        ("a.yaml", "?.yaml", True),
        ("ab.yaml", "?.yaml", False),
        ("a+b.yaml", "a+b.yaml", True),
        ("aab.yaml", "a+b.yaml", False),
        ("a/b/c.yaml", "**", True),
        ("a/b/c.yaml", "a/**", True),
        ("a", "a/**", False),
        ("a/b/c.yaml", "./a/**/b", True),
        ("a/c.yaml", "", False),
        ("a/c.yaml", "/", False),
        ("z.yaml", "[z-a].yaml", False),
        ("train-x.yaml", "train-[^0-9].yaml", True),
        ("a].yaml", "a[.yaml", False),
        ("a[.yaml", "a[.yaml", True),
    ],
)
def test_patterns(path, pattern, expected):
    assert matches(path, pattern) is expected


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_nothing_is_waited_for(tmp_path, monkeypatch):
    """A link to a terminal or a pipe in the place of settings, ignore rules or a baseline would hang every run."""
    from memlint.engine.baseline import load_baseline
    from memlint.engine.gitignore import rules_above

    for name in ("memlint.toml", "pyproject.toml", ".gitignore", "baseline.json"):
        os.mkfifo(tmp_path / name)
    (tmp_path / ".git").mkdir()
    forget_settings()
    assert settings_for(str(tmp_path)).source is None
    assert rules_above(str(tmp_path / "inner")) is not None
    with pytest.raises(UserError, match="not a regular file"):
        load_baseline(str(tmp_path / "baseline.json"))


def test_too_long_settings_are_refused_with_what_to_do(tmp_path):
    for name, cure in (("pyproject.toml", "move .tool.memlint. to memlint.toml"), ("memlint.toml", "no list of")):
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        (folder / name).write_text("# memlint\n" * 200_000)
        forget_settings()
        with pytest.raises(UserError, match=f"larger than 1 MiB; {cure}"):
            settings_for(str(folder))


def test_no_pattern_takes_long():
    """Settings come with a repository that may be anybody's."""
    started = time.process_time()
    assert not matches("a" * 250, "*a" * 50 + "b")
    assert not matches("a/" * 1000 + "c", "**/a/" * 50 + "b")
    assert time.process_time() - started < 1


def test_schema_has_exactly_the_keys_that_are_read():
    schema = json.loads(schema_text("settings"))
    jsonschema.Draft202012Validator.check_schema(schema)
    assert tuple(schema["properties"]) == KEYS
    assert tuple(schema["properties"]["overrides"]["items"]["properties"]) == OVERRIDE_KEYS
