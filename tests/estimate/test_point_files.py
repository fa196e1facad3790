"""Files of traced points: a bad line is named, and a run of some points leaves the others as they are."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.lines import known_lines, read_lines, replaced, write_lines


@pytest.mark.parametrize(
    ("line", "said"),
    [
        pytest.param(b"{bad", "the line is no JSON object", id="no JSON"),
        pytest.param(b"[1]", "the line is no JSON object", id="a list"),
        pytest.param(b"\xff", "the line is no JSON object", id="another encoding"),
        pytest.param(b"[" * 100_000, "the line is no JSON object", id="nested beyond all bounds"),
        pytest.param(b'{"type": "llama"}', "the point has no `peak`", id="a field that is missing"),
    ],
)
def test_a_bad_line_is_named(line: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "points.jsonl"
    path.write_bytes(b'{"type": "gpt2", "peak": 1}\n\n' + line + b"\n")
    with pytest.raises(ValueError, match=r"points\.jsonl:3: ") as caught:
        read_lines(str(path), ("type", "peak"))
    assert said in str(caught.value)


def test_no_file_holds_no_points(tmp_path: Path) -> None:
    assert known_lines(str(tmp_path / "none.jsonl")) == [] == known_lines(None)


def test_new_points_take_the_places_of_old_ones(tmp_path: Path) -> None:
    old = [{"name": "a", "peak": 1}, {"name": "b", "peak": 2}]
    made = replaced(old, [{"name": "c", "peak": 3}, {"name": "a", "peak": 4}], lambda point: point["name"])
    path = str(tmp_path / "points.jsonl")
    write_lines(path, made)
    assert read_lines(path) == [{"name": "a", "peak": 4}, {"name": "b", "peak": 2}, {"name": "c", "peak": 3}]


def test_a_point_that_the_grid_no_longer_has_is_named(tmp_path: Path) -> None:
    from benchmarks.accuracy.grid_tables import compare_grid

    path = tmp_path / "grid.jsonl"
    point = {"type": "llama", "setup": "on the moon", "peak": 1, "phase": "loss", "parameters": 1}
    path.write_text(json.dumps(point))
    with pytest.raises(ValueError, match="the grid has no point `llama`, `on the moon`"):
        compare_grid(str(path))


class TestTrainers:
    """``benchmarks.objectives`` writes what it traced among what its file holds."""

    @pytest.fixture
    def output(self, tmp_path: Path) -> Path:
        path = tmp_path / "traces.jsonl"
        write_lines(str(path), [self.point("dpo", peak=1), self.point("kto", peak=1)], sort_keys=True)
        return path

    @staticmethod
    def point(objective: str, peak: int) -> dict[str, Any]:
        return {"objective": objective, "parameters": 7, "phase_peaks": {"loss": peak}}

    @staticmethod
    def run(output: Path, *objectives: str, part: bool, broken: str = "") -> int:
        from benchmarks.objectives.report import report

        def trace(point: dict[str, Any]) -> Any:
            if point["objective"] == broken:
                raise RuntimeError("no such operator")
            return SimpleNamespace(parameters=7, phase_peaks={"loss": 2})

        step: Any = SimpleNamespace(timeline=[SimpleNamespace(phase="loss", peak_bytes=2)])
        points = [{"objective": name} for name in objectives]
        return report(points, trace, lambda p: step, lambda p: str(p["objective"]), ("loss",), str(output), part=part)

    def test_a_part_leaves_the_others(self, output: Path) -> None:
        assert self.run(output, "kto", part=True) == 0
        assert read_lines(str(output)) == [self.point("dpo", peak=1), self.point("kto", peak=2)]

    def test_a_whole_run_leaves_none_that_is_no_longer_traced(self, output: Path) -> None:
        assert self.run(output, "kto", part=False) == 0
        assert read_lines(str(output)) == [self.point("kto", peak=2)]

    def test_a_point_that_fails_is_named_and_keeps_its_line(
        self, output: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert self.run(output, "dpo", "kto", part=False, broken="dpo") == 1
        assert "dpo: not traced: RuntimeError: no such operator" in capsys.readouterr().err
        assert read_lines(str(output)) == [self.point("dpo", peak=1), self.point("kto", peak=2)]

    def test_nothing_asked_for_is_said(self, output: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.run(output, part=True) == 2
        assert "no point is called so" in capsys.readouterr().err


def test_optimizers_that_were_not_run_keep_their_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="the measure extra is not installed")
    from benchmarks.optimizers.__main__ import main

    path = tmp_path / "optimizers.jsonl"
    kept = {"optimizer": "came", "dtype": "bf16", "tied": False, "rank": 1, "states": 1, "temporaries": 1}
    write_lines(str(path), [kept])
    monkeypatch.setattr("sys.argv", ["optimizers", "--only", "sgd", "--output", str(path)])
    assert main() == 0
    names = [point["optimizer"] for point in read_lines(str(path))]
    assert names[0] == "came" and set(names[1:]) == {"sgd"}
