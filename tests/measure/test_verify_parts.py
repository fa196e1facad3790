"""The parts of `verify` that need neither torch nor a GPU: ranks, driver, comparison, depths, statistics."""

from __future__ import annotations

import ctypes
import json

import pytest

from memlint.errors import UserError
from memlint.measure.verify.calibrate import calibrate_text, quantile, read_reports, statistics
from memlint.measure.verify.compare import judge, rows_of
from memlint.measure.verify.depth import Depths, extend
from memlint.measure.verify.nvml import Nvml, own_pids
from memlint.measure.verify.ranks import Ranks, first_host, ranks_from
from memlint.measure.verify.report import KIND

GIB = 2**30
MIB = 2**20


# --- ranks


def test_a_process_on_its_own() -> None:
    assert ranks_from({}) == Ranks(rank=0, local_rank=0, world=1, launcher=None)


def test_torchrun_names_the_rank() -> None:
    environment = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "n1", "MASTER_PORT": "1234"}
    found = ranks_from(environment)
    assert (found.rank, found.local_rank, found.world, found.launcher) == (3, 1, 4, "torchrun")


def test_srun_names_the_rank_and_the_first_node_is_where_all_meet() -> None:
    environment = {
        "SLURM_STEP_ID": "0",
        "SLURM_NTASKS": "16",
        "SLURM_PROCID": "9",
        "SLURM_LOCALID": "1",
        "SLURM_JOB_ID": "77",
        "SLURM_STEP_NODELIST": "gpu[003-004]",
    }
    found = ranks_from(environment)
    assert (found.rank, found.local_rank, found.world, found.launcher) == (9, 1, 16, "srun")
    assert (found.address, found.port) == ("gpu003", 29577)
    assert ranks_from({**environment, "SLURM_PROCID": "0"}).port == found.port


def test_an_sbatch_script_without_srun_is_one_process() -> None:
    assert ranks_from({"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_JOB_ID": "7"}).launcher is None


@pytest.mark.parametrize(
    "environment",
    [{"RANK": "x", "WORLD_SIZE": "2"}, {"SLURM_STEP_ID": "0", "SLURM_NTASKS": "2"}],
    ids=["no number", "no rank"],
)
def test_an_odd_environment_is_one_sentence(environment: dict[str, str]) -> None:
    with pytest.raises(UserError, match="launcher's environment"):
        ranks_from(environment)


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("node7", "node7"),
        ("gpu[003-005,9],login1", "gpu003"),
        ("a-[12,14]-ib", "a-12-ib"),
        ("n1,n2", "n1"),
        ("", None),
    ],
)
def test_first_host_of_a_node_list(nodes: str, host: str | None) -> None:
    assert first_host(nodes) == host


# --- the driver


class FakeNvml:
    """Answers as libnvidia-ml does, through the same pointers."""

    def __init__(self, processes: list[tuple[int, int]]) -> None:
        self.processes = processes

    def nvmlDeviceGetCount_v2(self, count):
        count._obj.value = 1
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index, handle):
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid, handle):
        return 0 if uuid == b"GPU-1" else 6

    def nvmlDeviceGetUUID(self, handle, text, size):
        ctypes.memmove(text, b"GPU-1\0", 6)
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle, memory):
        memory._obj.used = 5 * GIB
        return 0

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle, count, processes):
        room = count._obj.value
        count._obj.value = len(self.processes)
        if processes is None or room < len(self.processes):
            return 7 if self.processes else 0
        for index, (pid, used) in enumerate(self.processes):
            processes[index].pid, processes[index].used = pid, used
        return 0


def test_the_driver_tells_our_bytes_from_those_of_others() -> None:
    nvml = Nvml(FakeNvml([(11, GIB), (42, 3 * GIB)]))
    assert nvml.used_bytes() == {"GPU-1": 5 * GIB}
    assert nvml.process_bytes("GPU-1", frozenset({42, 7})) == 3 * GIB


def test_a_process_that_the_driver_does_not_know_is_unknown() -> None:
    assert Nvml(FakeNvml([])).process_bytes("GPU-1", frozenset({42})) is None
    assert Nvml(FakeNvml([(42, 2**64 - 1)])).process_bytes("GPU-1", frozenset({42})) is None
    assert Nvml(FakeNvml([(42, GIB)])).process_bytes("GPU-2", frozenset({42})) is None


def test_own_pids_hold_this_process() -> None:
    import os

    assert os.getpid() in own_pids()


# --- comparison


def prediction(**changes):
    part = {"source": "test"}
    return {
        "method": "simulated",
        "parameters": 100,
        "trainable_parameters": 100,
        "allocated_bytes": 10 * GIB,
        "reserved_bytes": 11 * GIB,
        "device_bytes": 11 * GIB + 500 * MIB,
        "low_bytes": 10 * GIB,
        "high_bytes": 13 * GIB,
        "phase": "backward",
        "components": {},
        "static": {"parameters": 2 * GIB, "gradients": 2 * GIB, "optimizer_states": 4 * GIB},
        "forward_end_activation_bytes": 3 * GIB,
        "timeline": [
            {"phase": "forward", "peak_bytes": 9 * GIB, "end_bytes": 9 * GIB},
            {"phase": "backward", "peak_bytes": 10 * GIB, "end_bytes": 8 * GIB},
        ],
        "overheads": [
            {"name": "cublas_workspace", "low_bytes": 0, "expected_bytes": 64 * MIB, "high_bytes": 66 * MIB, **part},
            {"name": "allocator_slack", "low_bytes": 0, "expected_bytes": GIB - 64 * MIB, "high_bytes": GIB, **part},
            {
                "name": "cuda_context",
                "low_bytes": 400 * MIB,
                "expected_bytes": 500 * MIB,
                "high_bytes": 700 * MIB,
                **part,
            },
        ],
        "approximate": None,
        **changes,
    }


def measured(**changes):
    return {
        "rank": 0,
        "parameters": 100,
        "trainable_parameters": 100,
        "allocated_bytes": 10 * GIB,
        "workspace_bytes": 64 * MIB,
        "reserved_bytes": 11 * GIB,
        "device_bytes": 11 * GIB + 450 * MIB,
        "device_source": "NVML",
        "phase": "backward",
        "phases": ["forward", "backward"],
        "timeline": [
            {"phase": "forward", "peak_bytes": 8 * GIB, "end_bytes": 8 * GIB},
            {"phase": "backward", "peak_bytes": 10 * GIB, "end_bytes": 8 * GIB},
        ],
        "static": {"parameters": 2 * GIB, "gradients": 2 * GIB, "optimizer_states": 4 * GIB},
        "forward_end_activation_bytes": 3 * GIB,
        "first_step_peak_bytes": 9 * GIB,
        "losses": [2.0, 1.9],
        "seconds": [1.0, 0.5],
        "notes": [],
        **changes,
    }


def test_every_part_stands_beside_its_prediction() -> None:
    rows = {row["name"]: row for row in rows_of(prediction(), measured())}
    assert rows["parameters"]["error"] == 0
    assert rows["peak in forward"]["error"] == pytest.approx(9 / 8 - 1)
    assert rows["allocator slack"]["measured_bytes"] == GIB - 64 * MIB
    assert rows["context and libraries"]["measured_bytes"] == 450 * MIB
    assert rows["context and libraries"]["predicted_bytes"] == 500 * MIB
    assert rows["device"]["measured_bytes"] == 11 * GIB + 450 * MIB


def test_without_memory_figures_only_what_tensors_add_up_to_is_compared() -> None:
    found = measured(allocated_bytes=None, reserved_bytes=None, device_bytes=None, timeline=[])
    assert [row["name"] for row in rows_of(prediction(), found)] == ["parameters", "gradients", "optimizer_states"]
    assert judge(prediction(), found, False)["verdict"] == "not-compared"


@pytest.mark.parametrize(
    ("device", "verdict"),
    [(12 * GIB, "inside"), (13 * GIB, "inside"), (13 * GIB + 1, "above"), (10 * GIB - 1, "below")],
)
def test_the_verdict_is_whether_the_driver_s_figure_lies_in_the_interval(device: int, verdict: str) -> None:
    assert judge(prediction(), measured(device_bytes=device), False)["verdict"] == verdict


def test_without_the_driver_s_figure_reserved_bytes_are_judged_without_the_context() -> None:
    result = judge(prediction(), measured(device_bytes=None), False)
    assert result["figure"] == "reserved"
    assert result["low_bytes"] == 10 * GIB - 400 * MIB
    assert result["high_bytes"] == 13 * GIB - 700 * MIB
    assert judge(prediction(), measured(device_bytes=None, reserved_bytes=13 * GIB), False)["verdict"] == "above"


def test_out_of_memory_is_a_verdict_of_its_own() -> None:
    assert judge(prediction(), None, True)["verdict"] == "out-of-memory"


# --- depth


def grown(layers: int) -> dict[str, object]:
    """What a model of so many equal layers takes, its optimizer step growing faster than its forward."""
    forward, step = 5 * GIB + layers * 100 * MIB, 3 * GIB + layers * 300 * MIB
    timeline = [
        {"phase": "forward", "peak_bytes": forward, "end_bytes": forward},
        {"phase": "optimizer", "peak_bytes": step, "end_bytes": step},
    ]
    top = max(forward, step)
    return measured(
        parameters=1000 + layers * 10,
        trainable_parameters=layers * 10,
        static={"parameters": GIB + layers * 50 * MIB, "gradients": 0, "optimizer_states": layers * MIB},
        timeline=timeline,
        phase="forward" if top == forward else "optimizer",
        allocated_bytes=top,
        reserved_bytes=top + top // 10,
        device_bytes=top + top // 10 + 500 * MIB,
        forward_end_activation_bytes=layers * 90 * MIB,
        first_step_peak_bytes=forward,
    )


def test_two_shallow_runs_give_the_deep_one_also_where_the_peak_moves_to_another_phase() -> None:
    depths = Depths(low=4, high=8, full=32)
    assert grown(8)["phase"] == "forward"
    whole, truth = extend(grown(4), grown(8), depths), grown(32)
    assert truth["phase"] == "optimizer"
    for name in ("phase", "allocated_bytes", "timeline", "static", "parameters", "trainable_parameters"):
        assert whole[name] == truth[name], name
    assert whole["forward_end_activation_bytes"] == truth["forward_end_activation_bytes"]
    assert whole["device_bytes"] == pytest.approx(truth["device_bytes"], rel=0.001)


# --- calibration


def report(name: str = "a", family: str = "llama", error: float = 0.1, **changes):
    found = measured(allocated_bytes=round(10 * GIB / (1 + error)))
    expected = prediction()
    return {
        "version": 1,
        "kind": KIND,
        "name": name,
        "file": f"{name}.yaml",
        "model": {"id": name, "family": family},
        "job": {
            "training": {"method": "full", "optimizer": "adamw", "attention": "sdpa", "activation_checkpointing": {}}
        },
        "machine": {"device": "cuda", "name": "H200", "versions": {}},
        "prediction": expected,
        "measured": found,
        "comparison": rows_of(expected, found),
        "result": judge(expected, found, False),
        **changes,
    }


def test_statistics_over_reports() -> None:
    data = statistics([report("a", error=0.1), report("b", "gpt2", error=-0.02), report("c", error=0.03)])
    assert data["reports"] == 3
    allocated = data["figures"]["allocated"]
    assert allocated["count"] == 3
    assert allocated["median"] == pytest.approx(0.03, abs=1e-6)
    assert allocated["ninetieth_absolute"] == pytest.approx(0.03 + 0.8 * 0.07, abs=1e-6)
    assert (allocated["worst"], allocated["worst_report"]) == (pytest.approx(0.1, abs=1e-6), "a")
    assert data["groups"]["family"]["gpt2"]["median"] == pytest.approx(-0.02, abs=1e-6)
    context = data["overheads"]["context and libraries"]
    assert (context["median_bytes"], context["expected_bytes"], context["inside"]) == (450 * MIB, 500 * MIB, 3)
    text = calibrate_text(data)
    assert text.startswith("3 reports: 3 inside")
    assert "+10.00%  a" in text


def test_an_error_that_is_no_number_counts_as_none() -> None:
    row = {"name": "allocated", "predicted_bytes": 1, "measured_bytes": 1, "error": float("nan")}
    assert "allocated" not in statistics([report(comparison=[row])])["figures"]


def test_quantiles_lie_between_neighbours() -> None:
    assert quantile([1.0], 0.9) == 1.0
    assert quantile([0.0, 1.0], 0.5) == 0.5
    assert quantile([0.0, 1.0, 2.0, 3.0, 4.0], 0.9) == pytest.approx(3.6)


def test_reports_are_read_from_json_and_from_lines(tmp_path) -> None:
    one, many = tmp_path / "one.json", tmp_path / "many.jsonl"
    one.write_text(json.dumps(report(), indent=1))
    skipped = json.dumps({"kind": "memlint-verify-skipped", "name": "x", "reason": "no bitsandbytes"})
    many.write_text(f"{json.dumps(report())}\n{skipped}\n\n{json.dumps(report('b'))}\n")
    assert len(read_reports(str(one))) == 1
    assert [found["name"] for found in read_reports(str(many))] == ["a", "b"]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{}", "is no report"),
        ("not json\n", ":1 is no JSON object"),
        (json.dumps({"kind": KIND, "version": 9}), "version 9"),
        (json.dumps({"kind": KIND, "version": 1}), "no `model`"),
        (json.dumps(report(comparison=[{}])), "`comparison` is broken"),
        (json.dumps(report(model={})), r"broken .*family"),
        (json.dumps(report(prediction={"overheads": [{}]}, measured={"allocated_bytes": 1})), "broken"),
        ("[" * 100_000, "is no JSON object"),
    ],
)
def test_what_is_no_report_is_one_sentence(tmp_path, content: str, sentence: str) -> None:
    path = tmp_path / "r.json"
    path.write_text(content)
    with pytest.raises(UserError, match=sentence):
        read_reports(str(path))


def test_the_command_prints_the_table_and_changes_nothing(tmp_path, capsys) -> None:
    from memlint.cli import run

    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps(report()) + "\n")
    before = path.read_bytes()
    assert run(["calibrate", str(path)]) == 0
    assert "1 report: 1 inside" in capsys.readouterr().out
    assert run(["calibrate", str(path), "--output-format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["figures"]["allocated"]["count"] == 1
    assert path.read_bytes() == before
    assert run(["calibrate"]) == 2
    assert run(["calibrate", str(tmp_path / "none.json")]) == 2
