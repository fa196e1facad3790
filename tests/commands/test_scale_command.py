"""`memlint scale`: the handbook's table, and any list of models, in both forms side by side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memlint.cli import run
from memlint.exits import Exit
from memlint.units import GIB

LLAMA = {
    "model_type": "llama",
    "hidden_size": 512,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "intermediate_size": 1376,
    "vocab_size": 32000,
}


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA), encoding="utf-8")
    return str(path)


def scale(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert run(["scale", "--offline", "--output-format", "json", *arguments]) == Exit.OK
    parsed: dict[str, object] = json.loads(capsys.readouterr().out)
    return parsed


def test_without_a_model_the_handbooks_table_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scale"]) == Exit.OK
    table = capsys.readouterr().out
    assert max(len(line) for line in table.splitlines()) <= 80
    figures = {}
    for line in table.splitlines():
        if line.startswith(("GPT-2", "LLaMA")) and "not simulated" not in line:
            cells = line.split()
            unit = next(index for index, cell in enumerate(cells) if cell in ("M", "B"))
            figures[" ".join(cells[: unit - 1])] = tuple(cells[unit + 1 :: 2])
    assert figures == {
        "GPT-2 117M": ("1.5", "13.6", "1.1"),
        "GPT-2 774M": ("10.1", "68.2", "1.9"),
        "LLaMA-7B": ("91.3", "114.0", "3.6"),
        "LLaMA-13B": ("169.5", "178.1", "4.5"),
        "LLaMA-70B": ("912.7", "570.0", "7.1"),
    }


def test_the_handbooks_table_is_simulated_too(capsys: pytest.CaptureFixture[str]) -> None:
    models = scale(capsys)["models"]
    assert isinstance(models, list)
    for row in models:
        assert row["note"] is None
        simulated = row["simulated"]
        assert abs(simulated["parameters"] / row["parameters"] - 1) < 0.1  # nominal against counted
        # 14 bytes a parameter, and less than a MiB of rounding and buffers
        assert simulated["static_bytes"] == pytest.approx(14 * simulated["parameters"], abs=8 * 2**20)
        assert simulated["checkpointed_activation_bytes"] < simulated["activation_bytes"]
        # fused attention keeps no scores, so it needs less than the formula says
        assert simulated["activation_bytes"] < row["first_order"]["activation_bytes"]


def test_a_named_model_is_counted_exactly_in_both_forms(capsys: pytest.CaptureFixture[str], model: str) -> None:
    shown = scale(capsys, model, "--micro-batch-size", "2", "--sequence-length", "1024")
    assert shown["settings"] == {"micro_batch_size": 2, "sequence_length": 1024}
    (row,) = shown["models"]  # type: ignore[misc]
    exact = 2 * 32000 * 512 + 6 * (4 * 512 * 512 + 3 * 512 * 1376 + 2 * 512) + 512
    assert row["model"] == model
    assert row["parameters"] == row["simulated"]["parameters"] == exact
    assert row["first_order"]["static_bytes"] == 14 * exact
    layer = 2 * 1024 * (34 * 512 + 5 * 8 * 1024)
    assert row["first_order"]["activation_bytes"] == 6 * layer
    assert row["first_order"]["checkpointed_activation_bytes"] == layer
    assert row["simulated"]["activation_bytes"] > 2 * 1024 * 6 * 24 * 512  # 24H and more a token and layer


def test_an_unknown_architecture_has_the_first_form_alone_and_says_why(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    config = {name: size for name, size in LLAMA.items() if name != "model_type"}
    path.write_text(json.dumps(config | {"model_type": "longformer"}), encoding="utf-8")
    code = run(["scale", "--offline", str(path)])
    output = capsys.readouterr()
    if code == Exit.OK:
        assert "not simulated: " in output.out
    else:  # no shape of a transformer at all: one sentence
        assert code == Exit.FAILED
        assert output.err.startswith("memlint: error: ")


def test_longer_sequences_never_need_less(capsys: pytest.CaptureFixture[str], model: str) -> None:
    sizes = []
    for tokens in ("512", "1024", "2048"):
        (row,) = scale(capsys, model, "--sequence-length", tokens)["models"]  # type: ignore[misc]
        sizes.append((row["first_order"]["activation_bytes"], row["simulated"]["activation_bytes"]))
    assert sizes == sorted(sizes)
    assert sizes[-1][0] < 100 * GIB


def test_a_long_name_keeps_the_table_in_80_columns(capsys: pytest.CaptureFixture[str], model: str) -> None:
    assert run(["scale", "--offline", model]) == Exit.OK
    assert max(len(line) for line in capsys.readouterr().out.splitlines()) <= 80


@pytest.mark.parametrize(
    "arguments",
    [
        ["nobody/no-such-model"],
        ["--micro-batch-size", "0"],
        ["--micro-batch-size", "9" * 400],
        ["--sequence-length", "9" * 400],
        ["./nowhere"],
    ],
)
def test_a_mistake_is_one_sentence(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert run(["scale", "--offline", *arguments]) == Exit.FAILED
    assert capsys.readouterr().err.startswith("memlint: error: ")
