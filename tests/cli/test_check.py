"""`memlint check`: what users script against."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest

from memlint.exits import Exit
from memlint.findings import Severity
from memlint.settings.load import forget_settings


def codes(memlint, *argv):
    """Codes of the findings, by file, in the order of the report."""
    _, out, _ = memlint("check", "--output-format", "json", *argv)
    return {file["path"]: [finding["code"] for finding in file["findings"]] for file in json.loads(out)["files"]}


def test_exit_codes_are_a_contract():
    assert {code.name: code.value for code in Exit} == {"OK": 0, "FINDINGS": 1, "FAILED": 2}
    assert [severity.label for severity in Severity] == ["info", "warning", "error"]


def test_one_line_for_each_config_then_findings_then_totals(project, memlint):
    code, out, err = memlint("check", "--target", "24GiB")
    lines = out.splitlines()
    assert code == 1
    assert err == ""
    assert lines[0].startswith("big.yaml: predicted peak ")
    assert lines[0].endswith(": out of memory")
    assert any(line.startswith("small.yaml: predicted peak ") and line.endswith(": fits") for line in lines)
    assert lines[-1].startswith("Checked 2 files, skipped 2: 1 error, ")
    assert lines[-1].endswith("Run `memlint explain MEM101` for the reasoning.")
    assert any(line.startswith("big.yaml:4:21: error[MEM101] out-of-memory: predicted peak ") for line in lines)


def test_a_project_that_fits_exits_0_with_the_same_output_in_any_order(project, memlint):
    first = memlint("check", "--target", "80GiB", "small.yaml", "ci.yaml")
    assert first[0] == 0
    assert first == memlint("check", "--target", "80GiB", "ci.yaml", "small.yaml")
    assert first[1].splitlines()[-1] == "Checked 1 file, skipped 1: 0 errors, 0 warnings."


def test_files_that_are_no_training_config_are_skipped_silently(project, memlint):
    assert memlint("check", "ci.yaml") == (0, "Checked 0 files, skipped 1: 0 errors, 0 warnings.\n", "")


def test_results_do_not_depend_on_the_other_files(project, memlint):
    alone = codes(memlint, "--target", "24GiB", "big.yaml")["big.yaml"]
    assert codes(memlint, "--target", "24GiB")["big.yaml"] == alone


def test_several_processes_give_the_same_report(project, memlint):
    for number in range(20):
        (project / f"copy{number:02}.yaml").write_text((project / "small.yaml").read_text())
    assert memlint("check", "--target", "24GiB", "-j", "2") == memlint("check", "--target", "24GiB")


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--fail-on", "error"], 1),
        (["--ignore", "MEM101"], 0),
        (["--ignore", "MEM101", "--fail-on", "warning"], 1),
        (["--select", "MEM3"], 0),
        (["--select", "MEM3,MEM101"], 1),
        (["--select", "out-of-memory"], 1),
        (["--exit-zero"], 0),
        (["--output-format", "sarif"], 1),
        (["--output-format", "json", "--exit-zero"], 0),
    ],
)
def test_exit_code_is_decided_by_severity_and_selection(project, memlint, argv, expected):
    assert memlint("check", "--target", "24GiB", "big.yaml", *argv)[0] == expected


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["nothing.yaml"], "nothing.yaml: no such file or folder"),
        (["--select", "XYZ123"], "no rule is called `XYZ123`; `memlint rules` lists them"),
        (["--ignore", "checkpointing-of"], "did you mean `checkpointing-off`?"),
        (["--target", "A1000"], "--target: "),
        (["--unsafe-fixes"], "--unsafe-fixes needs --fix"),
        (["-", "big.yaml"], "`-` reads standard input and cannot be mixed"),
        (["--write-baseline"], "--write-baseline needs a file"),
        (["--baseline", "none.json", "--target", "24GiB"], "cannot read baseline none.json"),
        (["-j", "-1"], "-j takes the number of processes"),
        (["--output", "json:no/such/folder/x.json"], "cannot write no/such/folder/x.json"),
    ],
)
def test_mistakes_exit_2_with_one_sentence(project, memlint, argv, message):
    code, _, err = memlint("check", *argv)
    assert code == 2
    assert message in err
    assert err.startswith("memlint")
    assert len(err.splitlines()) == 1


def test_bad_settings_exit_2(project, memlint):
    (project / "memlint.toml").write_text("targt = 'T4'\n")
    code, out, err = memlint("check")
    assert (code, out) == (2, "")
    assert err == "memlint: error: memlint.toml:1: unknown key `targt` in memlint.toml; did you mean `target`?\n"
    assert memlint("check", "--isolated", "--target", "80GiB", "small.yaml")[0] == 0


def test_several_outputs_in_one_run(project, memlint):
    _, out, _ = memlint(
        "check", "--target", "24GiB", "--output", "sarif:a.out", "--output", "r.json", "--output", "j.xml", "big.yaml"
    )
    assert out.startswith("big.yaml: predicted peak")
    assert json.loads((project / "a.out").read_text())["version"] == "2.1.0"
    assert json.loads((project / "r.json").read_text())["version"] == 1
    assert (project / "j.xml").read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("json:", "names no file; write json:FILE"),
        ("sariff:a.sarif", "no report format is called `sariff`; did you mean `sarif`?"),
        ("qqq:a.txt", "no report format is called `qqq`; choose from text, "),
    ],
)
def test_an_output_that_would_become_a_file_of_another_name_is_refused(project, memlint, output, words):
    before = sorted(path.name for path in project.iterdir())
    code, _, err = memlint("check", "--output", output, "small.yaml")
    assert code == 2
    assert words in err
    assert sorted(path.name for path in project.iterdir()) == before


def test_standard_input_takes_its_name_from_stdin_filename(project, memlint, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((project / "big.yaml").read_bytes())))
    _, out, _ = memlint("check", "-", "--stdin-filename", "big.yaml", "--target", "24GiB")
    assert out == memlint("check", "big.yaml", "--target", "24GiB")[1]


def test_standard_input_is_read_no_further_than_a_config_may_be_long(project, memlint, monkeypatch):
    class Endless(io.RawIOBase):
        taken = 0

        def readable(self):
            return True

        def readinto(self, buffer):
            self.taken += len(buffer)
            assert self.taken < 16 << 20
            buffer[:] = b"#" * len(buffer)
            return len(buffer)

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(Endless())))
    assert "skipped 1" in memlint("check", "-")[1]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--stdin-filename", "a.yaml", "big.yaml"), "names what `-` reads"),
        (("--write-baseline", "--baseline", "b.json", "--fix", "big.yaml"), "without --fix and --diff"),
        (("--write-baseline", "--baseline", "b.json", "--diff", "big.yaml"), "without --fix and --diff"),
    ],
)
def test_options_that_would_be_passed_over_are_refused(project, memlint, argv, words):
    code, out, err = memlint("check", *argv)
    assert (code, out) == (2, "")
    assert words in err
    assert not (project / "b.json").exists()


def test_a_diff_counts_lines_as_git_does(project, memlint):
    text = (project / "big.yaml").read_text()
    (project / "big.yaml").write_bytes((text + 'versions: {x: "a\u2028b\x85c"}\n').replace("\n", "\r\n").encode())
    out = memlint("check", "--diff", "--unsafe-fixes", "--target", "24GiB", "big.yaml")[1]
    (project / "change.patch").write_bytes(out.encode())
    assert "No newline at end of file" not in out
    before = (project / "big.yaml").read_bytes()
    done = subprocess.run(["git", "apply", "change.patch"], cwd=project, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (project / "big.yaml").read_bytes() != before


def test_strongest_target_wins(project, memlint):
    def usable(*argv):
        _, out, _ = memlint("check", "small.yaml", "--output-format", "json", *argv)
        target = json.loads(out)["files"][0]["estimate"]["target"]
        return target and target["name"]

    assert usable() is None
    (project / "memlint.toml").write_text('target = "T4"\n[[overrides]]\nfiles = ["small*"]\ntarget = "L4"\n')
    forget_settings()
    assert usable() == "L4"
    job = (project / "small.yaml").read_text()
    (project / "small.yaml").write_text(job + "hardware: {target: A10}\n")
    assert usable() == "A10"
    (project / "small.yaml").write_text(job + "hardware: {target: A10}\n# memlint: target=H100-80GB\n")
    assert usable() == "H100-80GB"
    assert usable("--target", "A100-80GB") == "A100-80GB"


def test_world_size_of_a_comment_counts_where_the_config_states_none(project, memlint):
    def peak(comment):
        text = (project / "small.yaml").read_text().split("parallelism")[0]
        (project / "small.yaml").write_text(f"{text}parallelism: {{strategy: zero3}}\n{comment}")
        _, out, _ = memlint("check", "small.yaml", "--output-format", "json", "--target", "80GiB")
        return json.loads(out)["files"][0]["estimate"]["static"]["parameters"]

    alone = peak("")
    assert peak("# memlint: gpus=8\n") < alone / 7


def test_a_target_that_does_not_exist_is_a_finding_where_it_stands(project, memlint):
    (project / "small.yaml").write_text((project / "small.yaml").read_text() + "hardware:\n  target: A1000\n")
    _, out, _ = memlint("check", "small.yaml", "--output-format", "concise")
    assert "small.yaml:9:11: error[MEM003] bad-value: " in out


def test_ignore_comments_silence_their_line_and_are_counted(project, memlint):
    text = (project / "big.yaml").read_text()
    (project / "big.yaml").write_text(
        text.replace("micro_batch_size: 32", "micro_batch_size: 32  # memlint: ignore[MEM101] known")
    )
    code, out, _ = memlint("check", "--target", "24GiB", "big.yaml", "--select", "MEM101")
    assert code == 0
    assert out.splitlines()[-1] == "Checked 1 file: 0 errors, 0 warnings, 1 ignored."


def test_unused_ignores_are_reported_where_their_rule_ran(project, memlint):
    text = "# memlint: ignore-file[MEM302] once needed\n" + (project / "small.yaml").read_text()
    (project / "small.yaml").write_text(text)
    _, out, _ = memlint("check", "--target", "80GiB", "small.yaml", "--output-format", "concise")
    assert "small.yaml:1:1: warning[MEM007] setting-without-effect: `ignore-file[MEM302]` silences nothing" in out
    assert "silences nothing" not in memlint("check", "small.yaml")[1]
    assert "silences nothing" not in memlint("check", "--target", "80GiB", "small.yaml", "--ignore", "MEM302")[1]


def test_per_file_ignores_of_the_settings(project, memlint):
    (project / "memlint.toml").write_text('[per-file-ignores]\n"big*" = ["MEM1", "MEM3", "MEM4", "MEM6"]\n')
    forget_settings()
    code, out, _ = memlint("check", "--target", "24GiB", "big.yaml")
    assert code == 0
    assert "0 errors, 0 warnings" in out
    assert "ignored" in out.splitlines()[-1]


def test_baseline_hides_what_is_known_until_it_gets_worse(project, memlint):
    flags = ("--target", "24GiB", "--baseline", "known.json", "big.yaml")
    code, out, err = memlint("check", "--write-baseline", *flags)
    assert (code, out) == (0, "")
    assert "known.json" in err
    code, out, _ = memlint("check", *flags)
    assert code == 0
    assert "in the baseline" in out.splitlines()[-1]
    text = (project / "big.yaml").read_text()
    (project / "big.yaml").write_text("\n\n" + text)
    assert memlint("check", *flags)[0] == 0
    (project / "big.yaml").write_text(text.replace("4096", "8192"))
    assert memlint("check", *flags)[0] == 1
    (project / "big.yaml").write_text(text)
    memlint("check", "--write-baseline", *flags)
    assert json.loads((project / "known.json").read_text())["entries"]


def test_margin_decides_between_fits_and_tight(project, memlint):
    _, out, _ = memlint("check", "small.yaml", "--target", "80GiB", "--output-format", "json")
    assert json.loads(out)["files"][0]["estimate"]["verdict"] == "fits"
    (project / "memlint.toml").write_text("margin = 0.98\n")
    forget_settings()
    assert "MEM102" in codes(memlint, "small.yaml", "--target", "80GiB")["small.yaml"]


def test_jobs_of_the_settings_are_checked_with_their_file(project, memlint):
    (project / "pyproject.toml").write_text(
        '[tool.memlint]\ntarget = "24GiB"\n\n[[tool.memlint.jobs]]\nmodel = "shapes/one-b"\n'
        "[tool.memlint.jobs.training]\nmicro_batch_size = 64\nsequence_length = 4096\n"
    )
    forget_settings()
    code, out, _ = memlint("check", "pyproject.toml")
    assert code == 1
    assert "pyproject.toml (jobs[0]): predicted peak" in out
    assert "pyproject.toml:7:20: error[MEM101]" in out


def test_a_bare_model_config_is_validated_and_predicted_only_where_settings_say_how(project, memlint):
    assert memlint("check", "shapes")[1] == "Checked 0 files, skipped 1: 0 errors, 0 warnings.\n"
    (project / "memlint.toml").write_text("[training]\nmicro_batch_size = 2\n")
    forget_settings()
    assert "shapes/one-b/config.json: predicted peak" in memlint("check", "shapes")[1]
    config = project / "shapes" / "one-b" / "config.json"
    config.write_text(config.read_text().replace('"num_attention_heads": 32', '"num_attention_heads": -1'))
    for text in ("[training]\nmicro_batch_size = 2\n", ""):
        (project / "memlint.toml").write_text(text)
        forget_settings()
        code, out, _ = memlint("check", "shapes")
        assert code == 1
        assert "shapes/one-b/config.json:1:" in out
        assert "error[MEM003] bad-value" in out


def test_a_file_that_does_not_parse_is_a_finding(project, memlint):
    (project / "small.yaml").write_text((project / "small.yaml").read_text() + "parallelism: [\n")
    (project / "ci.yaml").write_text("on: [push\n")
    (project / "neox.yml").write_text('{"zero_optimization": {"stage": 1\n  "train_batch_size": 4}}\n')
    code, out, _ = memlint("check", "--output-format", "concise")
    assert code == 1
    assert "small.yaml:" in out
    assert "error[MEM001] unreadable-file" in out
    assert "ci.yaml" not in out
    assert "neox.yml" not in out


def test_a_tab_in_a_training_config_is_a_finding_though_half_of_it_parses(project, memlint):
    (project / "run.yaml").write_text("base_model: shapes/one-b\nmicro_batch_size: 2\ndatasets:\n\t- path: x\n")
    code, out, _ = memlint("check", "run.yaml", "--output-format", "concise")
    assert code == 1
    assert "run.yaml:4:1: error[MEM001] unreadable-file" in out
    assert memlint("check", "run.yaml", "--show-files")[1] == "run.yaml: unreadable\n"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe\x00",
        b"\x00" * 100,
        b"memlint: 1\n" + b"a: [" * 5000,
        b"base_model: &a [*a]\n",
        b"a: &a [x]\n" + b"".join(b"b%d: &b%d [*a, *a, *a, *a, *a, *a, *a, *a]\n" % (i, i) for i in range(9)),
        b"{" * 3000,
        b"memlint: 1\nmodel: {model_type: llama, hidden_size: 1.0e+400}\n",
        b"memlint: 1\nmodel: 2024-01-01\ntraining: [1, 2]\n",
        b"? [a, b]\n: c\nbase_model: x\n",
        b'memlint: 1\nmodel: "\\ud800"\n',
        b"base_model: " + b"x" * 100000,
        b"memlint: 1\nmodel: shapes/one-b\ntraining: {micro_batch_size: 99999999999999999999}\n",
    ],
    ids=range(13),
)
def test_hostile_files_never_crash(project, memlint, content):
    (project / "small.yaml").write_bytes(content)
    (project / "small.json").write_bytes(content)
    code, out, err = memlint("check", "small.yaml", "small.json", "--target", "24GiB", "--offline")
    assert code in (0, 1), err
    assert err == ""
    out.encode("utf-8")


def test_show_files_says_why_a_file_is_skipped(project, memlint):
    (project / "memlint.toml").write_text('exclude = ["big.yaml"]\n')
    forget_settings()
    assert memlint("check", "--show-files")[1].splitlines() == [
        "big.yaml: skipped: excluded by the settings",
        "ci.yaml: skipped: no training config",
        "memlint.toml: skipped: settings without jobs",
        "shapes/one-b/config.json: skipped: a model's config; `training` in the settings would predict it",
        "small.yaml: native",
    ]


def test_show_settings_prints_what_applies(project, memlint):
    (project / "memlint.toml").write_text('target = "T4"\n')
    forget_settings()
    shown = json.loads(memlint("check", "--show-settings", "small.yaml")[1])
    assert shown["small.yaml"]["target"] == "T4"
    assert shown["small.yaml"]["fail-on"] == "error"


def test_fix_applies_what_keeps_the_result_and_the_promised_figure_holds(project, memlint):
    _, out, _ = memlint("check", "--target", "40GiB", "big.yaml", "--output-format", "json")
    findings = json.loads(out)["files"][0]["findings"]
    promised = next(f for f in findings if f["code"] == "MEM601")
    before = json.loads(out)["files"][0]["estimate"]["peak"]["device_bytes"]
    assert promised["fix"]["safe"] is True
    text = (project / "big.yaml").read_text()
    _, out, _ = memlint("check", "--target", "40GiB", "big.yaml", "--diff", "--select", "MEM601")
    assert "-  micro_batch_size: 32\n" in out
    assert (project / "big.yaml").read_text() == text
    _, out, _ = memlint(
        "check", "--target", "40GiB", "big.yaml", "--fix", "--select", "MEM601", "--output-format", "json"
    )
    after = json.loads(out)
    assert after["summary"]["fixed"] == 1
    assert before - after["files"][0]["estimate"]["peak"]["device_bytes"] == promised["saves_bytes"]
    assert "sequence_length: 4096" in (project / "big.yaml").read_text()


def test_unsafe_fixes_make_the_job_fit_as_promised(project, memlint):
    _, out, _ = memlint("check", "--target", "24GiB", "big.yaml", "--output-format", "json")
    (finding,) = [f for f in json.loads(out)["files"][0]["findings"] if f["code"] == "MEM101"]
    assert finding["fits_after"] is True
    assert memlint("check", "--target", "24GiB", "big.yaml", "--fix", "--unsafe-fixes")[0] == 0


def test_every_help_line_was_recomputed(project, memlint):
    _, out, _ = memlint("check", "--target", "24GiB", "big.yaml", "--output-format", "json")
    peak = json.loads(out)["files"][0]["estimate"]["peak"]["device_bytes"]
    helps = [line for f in json.loads(out)["files"][0]["findings"] for line in f.get("help", ())]
    assert helps
    for line in helps:
        predicted = (peak - line["saves_bytes"]) / 2**30
        assert f"predicted {predicted:.1f} GiB" in line["text"]
