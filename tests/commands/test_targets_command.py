"""`memlint targets`: what a target can name, with sources."""

from __future__ import annotations

import json

import pytest

from memlint.cli import run
from memlint.commands.targets import render_text, rows
from memlint.exits import Exit
from memlint.hardware.parse import parse_target
from memlint.units import GIB


def test_every_row_is_a_target_with_the_figures_it_resolves_to() -> None:
    listed = rows()
    assert {row["kind"] for row in listed} == {"gpu", "partition", "instance"}
    assert len({row["name"] for row in listed}) == len(listed)
    for row in listed:
        target = parse_target(row["name"])
        assert target.usable_bytes == row["usable_bytes"]
        assert target.usable_high_bytes == row["usable_high_bytes"]
        assert target.gpus == row["gpus"]
        assert row["source"]


def test_the_table_fits_a_terminal_and_shows_what_cuda_reports() -> None:
    table = render_text(rows())
    assert max(len(line) for line in table.splitlines()) <= 80
    line = next(line for line in table.splitlines() if line.startswith("RTX-4090"))
    assert line.split() == ["RTX-4090", "23.52", "23.99", "24", "8.9", "yes", "yes"]
    assert "8xA100-SXM4-40GB    p4d.24xlarge a2-highgpu-8g" in table


def test_json_lists_the_same_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["targets", "--output-format", "json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(rows()))


def test_a_text_shows_the_matching_targets_with_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["targets", "h200"]) == Exit.OK
    shown = capsys.readouterr().out
    assert "H200: 139.72 to 139.81 GiB usable\n" in shown
    assert "nvidia-smi 143771 MiB" in shown
    assert "GH200" in shown
    assert "RTX" not in shown
    assert max(len(line) for line in shown.splitlines()) <= 80


def test_a_full_target_shows_its_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["targets", "8xA100-80GB:3g.40gb"]) == Exit.OK
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines() if "usable" in line] == [
        "A100-80GB",
        "A100-80GB",
    ]


def test_a_bare_size_shows_the_gpus_that_hold_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["targets", "100GiB", "--output-format", "json"]) == Exit.OK
    shown = json.loads(capsys.readouterr().out)
    assert shown
    assert all(row["usable_bytes"] >= 100 * GIB for row in shown)


def test_an_unknown_text_is_answered_with_the_nearest_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["targets", "rtx4909"]) == Exit.FAILED
    assert "did you mean `RTX-4090`" in capsys.readouterr().err
