"""Out-of-memory texts: every form is read, the cause and the tensor are named, and the next steps carry numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memlint.__main__ import main
from memlint.oom.diagnose import Diagnosis, diagnose
from memlint.oom.parse import find

ROOT = Path(__file__).resolve().parents[2]
PUBLIC: list[dict[str, Any]] = json.loads((ROOT / "fixtures" / "oom" / "public.json").read_text(encoding="utf-8"))
"""Public reports: the figures as their authors posted them, the cause as their thread or the arithmetic shows."""
MIB, GIB = 2**20, 2**30


def _log(row: dict[str, Any]) -> str:
    lines = ["Traceback (most recent call last):"]
    for file, function, source in row["frames"]:
        lines += [f'  File "/venv/lib/python3.11/site-packages/{file}", line 10, in {function}', f"    {source}"]
    return "\n".join([*lines, f"torch.OutOfMemoryError: {row['text']}"])


def _job(row: dict[str, Any], tmp_path: Path) -> tuple[Any, int]:
    if "job" not in row:
        return None, 1
    from memlint.engine.source import open_source
    from memlint.estimate.simulate import world_size

    path = tmp_path / "job.json"
    path.write_text(json.dumps(row["job"]), encoding="utf-8")
    source = open_source(str(path), offline=True)
    return source.job, world_size(source.job, source.target)


def _right(row: dict[str, Any], found: Diagnosis) -> bool:
    tensor = row.get("tensor")
    if tensor is not None and (found.tensor is None or tensor not in found.tensor):
        return False
    if "phase" in row and found.phase != row["phase"]:
        return False
    return bool(found.cause == row["cause"])


def test_public_reports_are_explained(tmp_path: Path) -> None:
    wrong = []
    for row in PUBLIC:
        (event,) = find(_log(row))
        found = diagnose(event, *_job(row, tmp_path))
        if not _right(row, found):
            wrong.append((row["source"], found.cause, found.tensor, found.phase))
    assert len(PUBLIC) >= 30
    assert len(wrong) / len(PUBLIC) <= 0.2, wrong


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "RuntimeError: CUDA out of memory. Tried to allocate 2.00 MiB (GPU 0; 10.76 GiB total capacity; 9.79 GiB "
            "already "
            "allocated; 1.69 MiB free; 60.00 MiB cached)",
            {"requested": 2 * MIB, "reserved_free": 60 * MIB, "gpu": 0},
        ),
        (
            "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 1; 15.78 GiB total capacity; 14.00 "
            "GiB already "
            "allocated; 5.00 MiB free; 14.50 GiB reserved in total by PyTorch) If reserved memory is >> allocated "
            "memory",
            {"gpu": 1, "allocated": 14 * GIB, "reserved_free": GIB // 2},
        ),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 3 has a total capacity of "
            "40.00 GiB of "
            "which 0.50 GiB is free. Including non-PyTorch memory, this process has 39.50 GiB memory in use. 38.00 "
            "GiB allowed; "
            "Of the allocated memory 37.00 GiB is allocated by PyTorch, with 1.00 GiB allocated in private pools "
            "(e.g., CUDA "
            "Graphs), and 256.00 MiB is reserved by PyTorch but unallocated.",
            {"gpu": 3, "capacity": 40 * GIB, "allowed": 38 * GIB, "private_pools": GIB, "process": int(39.5 * GIB)},
        ),
        (
            "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of "
            "64.00 GiB of "
            "which 512.00 MiB is free.",
            {"capacity": 64 * GIB, "free": 512 * MIB},
        ),
        ("RuntimeError: CUDA error: out of memory", {"device": "cuda", "requested": None}),
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:114] data. DefaultCPUAllocator: can't allocate memory: you "
            "tried to "
            "allocate 68719476736 bytes. Error code 12 (Cannot allocate memory)",
            {"device": "host", "requested": 64 * GIB},
        ),
        (
            "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            {"device": "cuda"},
        ),
    ],
)
def test_every_historical_form_is_read(text: str, expected: dict[str, Any]) -> None:
    (event,) = find(text)
    assert {name: getattr(event, name) for name in expected} == expected


def test_a_message_is_found_inside_a_log_of_several_ranks() -> None:
    lines = ["epoch 1", "[rank1]: Traceback (most recent call last):"]
    lines += ['[rank1]:   File "/x/transformers/loss/loss_utils.py", line 32, in ForCausalLMLoss']
    lines += ["[rank1]:     logits = logits.float()"]
    text = "CUDA out of memory. Tried to allocate 1.00 GiB. GPU {0} has a total capacity of 40.00 GiB"
    lines += [f"[rank1]: {text.format(1)}", f"[rank2]: {text.format(2)}", f"[rank1]: {text.format(1)}"]
    events = find("\n".join(lines))
    assert [(e.rank, e.gpu) for e in events] == [("1", 1), ("2", 2)]
    assert diagnose(events[0]).tensor == "logits: tokens x vocabulary"
    assert diagnose(events[0]).phase == "loss"


def test_the_tensor_is_named_by_its_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "job.yaml"
    config.write_text(
        "memlint: 1\nmodel: meta-llama/Llama-3.1-8B\ntraining: "
        "{micro_batch_size: 4, sequence_length: 4096, precision: bf16}\n"
        "hardware: {target: A100-80GB}\n"
    )
    log = tmp_path / "crash.log"
    log.write_text(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.83 GiB. GPU 0 has a total capacity of 79.15 "
        "GiB of "
        "which 1.62 GiB is free. Including non-PyTorch memory, this process has 77.53 GiB memory in use.\n"
    )
    assert main(["oom", str(log), "--config", str(config), "--offline", "--output-format", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["messages"][0]["tensor"] == "logits in fp32 (4 x 4,096 x 128,256)"
    steps = answer["recovery"]
    assert [step["step"] for step in steps[:2]] == ["micro batch 1", "activation checkpointing"]
    sizes = [step["device_bytes"] for step in steps]
    assert sizes == sorted(sizes, reverse=True)


def test_a_log_without_a_message_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "fine.log"
    log.write_text("loss 1.0\n")
    assert main(["oom", str(log)]) == 2
    assert "holds no out-of-memory message" in capsys.readouterr().err
    assert main(["oom", str(tmp_path / "absent.log")]) == 2
    assert "cannot read" in capsys.readouterr().err


def test_hostile_logs_end_in_an_answer() -> None:
    for text in (
        "CUDA out of memory. Tried to allocate 9e999 GiB",
        "CUDA out of memory " * 10_000,
        "CUDA out of memory. Tried to allocate ... GiB",
        "CUDA out of memory. Tried to allocate 1.2.3 GiB",
        f"CUDA out of memory. Tried to allocate {'9' * 400} GiB",
        f"CUDA out of memory. GPU {'9' * 5000} has a total capacity of 1 GiB",
        f"CUDA out of memory. Process {'9' * 5000} has 1.00 GiB memory in use",
        f"DefaultCPUAllocator: can't allocate memory: you tried to allocate {'9' * 5000} bytes",
        "\0" * 1000,
        "GPU " * 50_000,
    ):
        for event in find(text):
            diagnose(event)


def test_a_device_of_terabytes_is_read() -> None:
    (event,) = find("CUDA out of memory. Tried to allocate 1.50 TB (GPU 0; 2.00 TiB total capacity; 1.00 TB free)")
    assert (event.requested, event.capacity, event.free) == (3 * 2**39, 2**41, 2**40)


def test_of_two_processes_of_one_size_one_is_another() -> None:
    (event,) = find(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.15 GiB is"
        " free. Process 7 has 39.00 GiB memory in use. Process 8 has 39.00 GiB memory in use. Of the allocated memory"
        " 38.00 GiB is allocated by PyTorch, and 512.00 MiB is reserved by PyTorch but unallocated."
    )
    assert (event.process, [size for _, size in event.others]) == (39 * GIB, [39 * GIB])


def test_the_crash_is_looked_for_at_the_end_of_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import io

    monkeypatch.setattr("memlint.oom.parse.LIMIT", 4096)
    text = b"loss \xff 1.0\n" * 1000 + b"CUDA out of memory. Tried to allocate 2.00 GiB\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text), encoding="utf-8"))
    assert main(["oom", "-"]) == 0
    assert "asked for 2.00" in capsys.readouterr().out


def _recovery(path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    config, log = path / "job.yaml", path / "crash.log"
    config.write_text("memlint: 1\n" + text)
    log.write_text("CUDA out of memory. Tried to allocate 2.00 GiB\n")
    assert main(["oom", str(log), "--config", str(config), "--offline", "--output-format", "json"]) == 0
    return [step["step"] for step in json.loads(capsys.readouterr().out)["recovery"]]


def test_rows_that_are_compared_with_each_other_stay_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A contrastive loss over one row has nothing to tell apart: its rows are embedded one by one instead."""
    text = (
        "model: Qwen/Qwen3-Embedding-0.6B\n"
        "training: {objective: contrastive, micro_batch_size: 64, sequence_length: 512}\nhardware: {target: RTX3090}\n"
    )
    steps = _recovery(tmp_path, text, capsys)
    assert "micro batch 1" not in steps
    assert steps[0] == "a mini batch of 1, with cached gradients"


def test_kto_needs_two_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        "model: Qwen/Qwen3-4B\ntraining: {objective: kto, micro_batch_size: 8, sequence_length: 2048}\n"
        "hardware: {target: T4}\n"
    )
    assert _recovery(tmp_path, text, capsys)[0] == "micro batch 2"


def test_a_step_that_leaves_no_margin_does_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`check` calls this job tight as it is (its high end lies within 5 % of the end), so a step must follow."""
    text = (
        "model: Qwen/Qwen3-4B\ntraining: {micro_batch_size: 2, sequence_length: 4096, activation_checkpointing: full}\n"
        "hardware: {target: A100-80GB}\n"
    )
    assert len(_recovery(tmp_path, text, capsys)) > 1
