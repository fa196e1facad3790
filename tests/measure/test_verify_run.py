"""Real steps on the CPU, from a job file to a report: full, LoRA, QLoRA, sharded over two processes, out of memory."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the measure extra is not installed")
pytest.importorskip("transformers", reason="the measure extra is not installed")
pytest.importorskip("peft", reason="the measure extra is not installed")

from memlint.cli import run as memlint  # noqa: E402
from memlint.errors import UserError  # noqa: E402
from memlint.measure.verify.request import Request, job_at_hand, plan_run  # noqa: E402
from memlint.measure.verify.run import verify_job  # noqa: E402

pytestmark = pytest.mark.measure

ROOT = Path(__file__).resolve().parents[2]
MODEL = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "tie_word_embeddings": True,
}
LORA = {"method": "lora", "precision": "bf16", "lora": {"rank": 4}}


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def job_file(tmp_path, monkeypatch):
    """Writes a native job over the tiny model and returns its path."""
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)

    def write(training=None, **rest):
        path = tmp_path / "job.json"
        job = {"memlint": 1, "model": MODEL, "training": {"sequence_length": 32, **(training or {})}, **rest}
        path.write_text(json.dumps(job))
        return str(path)

    return write


def job_of(path):
    from memlint.engine.source import open_source

    return open_source(path, offline=True, isolated=True).job


def verify(path, **options):
    return verify_job(Request(job=job_of(path), file=path, dialect="native", device="cpu", **options))


def schema_errors(report):
    """What schemas/verify.schema.json says about a report; empty where it holds."""
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((ROOT / "schemas" / "verify.schema.json").read_text(encoding="utf-8"))
    return [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(report)]


def errors(report):
    return {row["name"]: row["error"] for row in report["comparison"]}


def test_full_training_through_the_command(job_file, capsys):
    path = job_file({"gradient_accumulation_steps": 3})
    assert memlint(["verify", path, "--device", "cpu", "--isolated", "--output", "report.json"]) == 0
    out = capsys.readouterr().out
    assert "phases forward, loss, backward, clip, optimizer" in out
    assert "Memory not compared" in out
    assert "run on the CPU: memory is not compared" in out
    with open("report.json", encoding="utf-8") as handle:
        report = json.load(handle)
    assert schema_errors(report) == []
    assert report["result"]["verdict"] == "not-compared"
    assert report["measured"]["allocated_bytes"] is None
    # Weights, gradients and two AdamW moments: to the byte what the estimator says.
    assert errors(report) == {"parameters": 0, "gradients": 0, "optimizer_states": 0}
    assert len(report["measured"]["losses"]) == 4  # two steps of two micro batches
    assert all(5 < loss < 8 for loss in report["measured"]["losses"])  # near ln 512
    assert memlint(["calibrate", "report.json"]) == 0
    assert "1 not compared" in capsys.readouterr().out


def test_lora_trains_the_adapter_alone(job_file):
    report = verify(job_file({**LORA, "activation_checkpointing": "full"}))
    prediction, measured = report["prediction"], report["measured"]
    assert measured["trainable_parameters"] == prediction["trainable_parameters"] < measured["parameters"] / 5
    assert errors(report) == {"parameters": 0, "gradients": 0, "optimizer_states": 0}


def test_qlora_without_bitsandbytes_says_that_its_weights_are_stood_in_for(job_file, monkeypatch):
    monkeypatch.setattr("memlint.measure.verify.model.has_bitsandbytes", lambda: False)
    monkeypatch.setattr("memlint.measure.verify.optimizers.has_bitsandbytes", lambda: False)
    report = verify(job_file({"method": "qlora", "optimizer": "paged-adamw-8bit", "lora": {"rank": 4}}))
    full = 4 * report["measured"]["parameters"]
    assert report["measured"]["static"]["parameters"] < full / 2
    assert any("4-bit weights are stood in for" in note for note in report["notes"])
    assert any("paged-adamw-8bit are stood in for" in note for note in report["notes"])


@pytest.mark.parametrize(
    "training",
    [
        {"loss": "fused", **LORA},
        {"loss": "chunked"},
        {"objective": "sequence-classification", "micro_batch_size": 2},
        {"objective": "token-classification", "micro_batch_size": 2, "padding": True},
        {"optimizer": "adafactor", "optimizer_in_backward": True, "max_grad_norm": None},
        {"precision": "fp16-mixed", "attention": "eager", "padding": True, "micro_batch_size": 2},
        {"method": "freeze", "precision": "bf16", "activation_checkpointing": {"mode": "full", "reentrant": True}},
    ],
    ids=[
        "fused loss",
        "chunked loss",
        "sequences",
        "tokens",
        "optimizer in backward",
        "fp16 and padding",
        "freeze and reentrant",
    ],
)
def test_settings_run(job_file, training):
    report = verify(job_file(training))
    assert report["out_of_memory"] is None
    assert all(loss is not None for loss in report["measured"]["losses"])
    assert ("loss" in report["measured"]["phases"]) and ("clip" in report["measured"]["phases"]) == (
        training.get("max_grad_norm", 1) is not None
    )


@pytest.mark.parametrize("kind", ["fused", "tiled", "chunked"])
def test_a_loss_without_logits_is_the_loss(kind):
    """The stand-ins for Liger's and TRL's kernels give the same value and gradients as logits and cross entropy."""
    from memlint.measure.verify import loss as losses

    def without(h, w, labels):
        if kind == "tiled":
            return -losses._TiledLogProbs.apply(h, w, labels).mean()
        return losses._FusedLoss.apply(h, w, labels) if kind == "fused" else losses._chunked(h, w, labels)

    torch.manual_seed(0)
    hidden, weight = torch.randn(24, 16), torch.randn(100, 16)
    labels = torch.randint(0, 100, (24,))
    results = []
    for ours in (True, False):
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        loss = without(h, w, labels) if ours else torch.nn.functional.cross_entropy(h @ w.t(), labels)
        loss.backward()
        results.append((loss.detach(), h.grad, w.grad))
    for got, wanted in zip(*results):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def test_fewer_layers_are_carried_on_to_all(job_file):
    path = job_file()
    whole, part = verify(path), verify(path, layers=3)
    assert schema_errors(json.loads(json.dumps(part))) == []
    assert part["layers"]["run"] == [2, 3]
    assert part["layers"]["of"] == 4
    for name in ("parameters", "static", "trainable_parameters"):
        assert part["measured"][name] == whole["measured"][name], name
    assert any("2 and 3 of 4 layers" in note for note in part["notes"])
    assert [one["measured"]["parameters"] for one in part["layers"]["parts"]] != [whole["measured"]["parameters"]] * 2


def test_a_model_too_large_for_the_machine_is_run_with_fewer_layers(job_file, monkeypatch):
    from memlint.engine.predict import predict

    path = job_file()
    estimate, _ = predict(job_of(path), None)
    monkeypatch.setattr("memlint.measure.verify.run.HOST_SHARE", 1.0)
    monkeypatch.setattr("memlint.measure.verify.run.host_free_bytes", lambda: estimate.allocated_bytes - 1)
    assert verify(path)["layers"]["run"] == [2, 3]
    monkeypatch.setattr("memlint.measure.verify.run.host_free_bytes", lambda: 1000)
    with pytest.raises(UserError, match="even 3 of 4 layers do not fit"):
        verify(path)


def test_running_out_of_memory_is_an_answer(job_file, monkeypatch, capsys):
    from transformers.models.llama.modeling_llama import LlamaMLP

    inner, calls = LlamaMLP.forward, []

    def full(self, x):
        calls.append(1)
        if len(calls) == 7:  # third layer of the second step
            raise torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.11 GiB of which"
                " 1.25 GiB is free. Including non-PyTorch memory, this process has 77.86 GiB memory in use."
            )
        return inner(self, x)

    monkeypatch.setattr(LlamaMLP, "forward", full)
    assert memlint(["verify", job_file(), "--device", "cpu", "--isolated", "--output", "oom.json"]) == 1
    out = capsys.readouterr().out
    assert "Out of memory in forward of step 2 at model.layers.2.mlp." in out
    assert "it asked for 2.50 GiB" in out
    assert "1.25 of 79.11 GiB were free" in out
    assert "`memlint plan" in out
    with open("oom.json", encoding="utf-8") as handle:
        report = json.load(handle)
    assert schema_errors(report) == []
    assert report["measured"] is None
    assert report["result"]["verdict"] == "out-of-memory"
    assert memlint(["calibrate", "oom.json"]) == 0


def test_an_error_of_another_kind_is_not_taken_for_it(job_file, monkeypatch):
    from transformers.models.llama.modeling_llama import LlamaMLP

    def broken(self, x):
        raise RuntimeError("something else")

    monkeypatch.setattr(LlamaMLP, "forward", broken)
    with pytest.raises(UserError, match=r"the code of `llama` does not run here .*RuntimeError: something else"):
        verify(job_file())
    monkeypatch.setenv("MEMLINT_DEBUG", "1")
    with pytest.raises(RuntimeError, match="something else"):
        verify(job_file())


@pytest.mark.parametrize(
    ("training", "rest", "name"),
    [
        ({"objective": "dpo"}, {}, "training.objective: dpo"),
        ({"optimizer": "muon"}, {}, "training.optimizer: muon"),
        ({"loss": "fused", "objective": "masked-lm"}, {}, "training.loss: fused"),
        ({"precision": {"weights": "bf16", "gradients": "fp32"}}, {}, "training.precision.gradients: fp32"),
        ({"method": "qlora", "quantization": {"experts": "fused"}}, {}, "training.quantization.experts: fused"),
        ({}, {"parallelism": {"strategy": "fsdp", "wrap": "none"}}, "parallelism.wrap: none"),
        ({}, {"parallelism": {"strategy": "zero2"}}, "parallelism.strategy: zero2"),
        ({}, {"parallelism": {"strategy": "fsdp", "tensor": 2}}, "parallelism.tensor: 2"),
    ],
)
def test_what_cannot_be_run_is_named(job_file, training, rest, name):
    with pytest.raises(UserError, match=f"does not run `{name}`"):
        verify(job_file(training, **rest))


@pytest.mark.parametrize(
    ("training", "said"),
    [
        ({"freeze": ["model", "lm_head"]}, "nothing of the model trains"),
        ({"method": "lora", "lora": {"targets": "(("}}, "PEFT cannot add this adapter: missing \\)"),
        ({"loss": "cut-cross-entropy"}, "memlint verify does not run `training.loss: cut-cross-entropy`"),
    ],
)
def test_the_command_names_the_place_of_what_it_cannot_run(job_file, training, said, capsys):
    assert memlint(["verify", "--device", "cpu", job_file(training)]) == 2
    err = capsys.readouterr().err
    assert re.search(rf"error: job\.json:\d+:\d+: {said}", err)
    assert "Traceback" not in err


def test_what_transformers_refuses_is_one_sentence(job_file, monkeypatch):
    def refuses(*args, **kwargs):
        raise ValueError("LlamaForCausalLM does not support this attention\nmore")

    monkeypatch.setattr("memlint.measure.verify.model.make_model", refuses)
    with pytest.raises(
        UserError, match=r"cannot be built as the job says: LlamaForCausalLM does not support this attention$"
    ):
        verify(job_file())


def test_the_job_is_spread_over_the_processes_there_are(job_file):
    alone = job_of(job_file())
    job, notes = job_at_hand(alone, 2)
    assert (job.parallelism.strategy, job.parallelism.gpus) == ("ddp", 2)
    assert "DDP over 2 processes" in notes[0]
    assert plan_run(job, 2, "cpu").strategy == "ddp"
    sharded = job_of(job_file(parallelism={"strategy": "fsdp", "gpus": 8}))
    job, notes = job_at_hand(sharded, 2)
    assert job.parallelism.gpus == 2
    assert "8 GPUs" in notes[0]


def test_two_processes_of_fsdp2_share_the_model(job_file, capsys):
    """`--gpus 2` starts torchrun; each rank holds its half, and the halves add up."""
    path = job_file({**LORA, "loss": "chunked"}, parallelism={"strategy": "fsdp"})
    single = verify(path)
    assert memlint(["verify", path, "--device", "cpu", "--gpus", "2", "--isolated", "--output-format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["machine"]["launcher"] == "torchrun"
    assert report["job"]["parallelism"]["gpus"] == 2
    assert [rank["rank"] for rank in report["ranks"]] == [0, 1]
    found = errors(report)
    assert (found["parameters"], found["optimizer_states"]) == (0, 0)
    # Gradients of one FSDP unit lie in one buffer; at this size rounding each to 512 bytes shows.
    assert 0 <= found["gradients"] < 0.1
    for part in ("gradients", "optimizer_states"):
        halves = [rank["static"][part] for rank in report["ranks"]]
        assert sum(halves) == pytest.approx(single["measured"]["static"][part], rel=0.15)  # each rounded up to 512
        assert max(halves) < 0.6 * single["measured"]["static"][part]


@pytest.mark.slow
def test_one_rank_out_of_memory_ends_all_and_says_where(job_file, monkeypatch):
    """The second rank fails in its second step, while the first waits for it."""
    path = job_file(parallelism={"strategy": "ddp"})
    (Path(path).parent / "sitecustomize.py").write_text(OUT_OF_MEMORY)
    monkeypatch.setenv("PYTHONPATH", f"{Path(path).parent}{os.pathsep}{ROOT}")
    from memlint.measure.verify.launch import launch

    report = launch(Request(job=job_of(path), file=path, dialect="native", device="cpu"), 2)
    stop = report["out_of_memory"]
    assert (stop["rank"], stop["step"], stop["phase"], stop["module"]) == (1, 2, "forward", "model.layers.0.mlp")


OUT_OF_MEMORY = """
import os
if os.environ.get("RANK") == "1":
    import torch
    from transformers.models.llama.modeling_llama import LlamaMLP
    inner, calls = LlamaMLP.forward, []
    def full(self, x):
        calls.append(1)
        if len(calls) == 5:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB.")
        return inner(self, x)
    LlamaMLP.forward = full
"""


@pytest.mark.slow
def test_under_srun_each_process_takes_its_place_and_one_speaks(job_file):
    path = job_file(parallelism={"strategy": "ddp"})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "memlint", "verify", path, "--device", "cpu", "--isolated"]
    processes = [
        subprocess.Popen(
            [*command, "--output-format", "json"],
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": str(ROOT),
                "SLURM_STEP_ID": "0",
                "SLURM_NTASKS": "2",
                "SLURM_PROCID": str(rank),
                "SLURM_LOCALID": str(rank),
                "SLURM_STEP_NODELIST": "localhost",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    outputs = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    report = json.loads(outputs[0][0])
    assert (report["machine"]["launcher"], report["machine"]["world"]) == ("srun", 2)
    assert outputs[1][0] == ""
