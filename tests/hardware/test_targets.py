"""A declared target, as people write it, becomes one machine shape."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memlint.__main__ import main
from memlint.errors import UserError
from memlint.hardware.catalog import gpu_named, gpus, instances, partitions
from memlint.hardware.parse import parse_target
from memlint.units import GIB, MIB

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "hardware"
CSV_NAMES = {
    "RTX PRO 6000 Blackwell": "RTX-PRO-6000",
    "Tesla P100 16GB": "P100-16GB",
    "Instinct MI250X (one GCD)": "MI250X",
}
"""Names in the shared table that are no names a user would write."""


@pytest.mark.parametrize(
    ("text", "spec", "name", "gpus", "nodes"),
    [
        ("A100-80GB", "A100-80GB", "A100-80GB", 1, 1),
        ("8xA100-80GB", "8xA100-80GB", "A100-80GB", 8, 1),
        ("2x8xH100-80GB", "2x8xH100-80GB", "H100-80GB", 16, 2),
        ("2x1xH100-80GB", "2x1xH100-80GB", "H100-80GB", 2, 2),
        ("rtx4090", "RTX-4090", "RTX-4090", 1, 1),
        ("4x4090", "4xRTX-4090", "RTX-4090", 4, 1),
        ("p4d.24xlarge", "p4d.24xlarge", "A100-SXM4-40GB", 8, 1),
        ("2xp4d.24xlarge", "2xp4d.24xlarge", "A100-SXM4-40GB", 16, 2),
        ("a2-highgpu-4g", "a2-highgpu-4g", "A100-SXM4-40GB", 4, 1),
        ("standard_nc48ads_a100_v4", "Standard_NC48ads_A100_v4", "A100-PCIE-80GB", 2, 1),
        ("NC48ads A100 v4", "Standard_NC48ads_A100_v4", "A100-PCIE-80GB", 2, 1),
        ("ml.g5.12xlarge", "g5.12xlarge", "A10G", 4, 1),
        ("l40sx4", "l40sx4", "L40S", 4, 1),
        ("16GiB", "16GiB", "16GiB", 1, 1),
        ("8x24GiB", "8x24GiB", "24GiB", 8, 1),
        ("A100-80GB:3g.40gb", "A100-80GB:3g.40gb", "A100-80GB:3g.40gb", 1, 1),
        ("8 x H100 NVL", "8xH100-NVL", "H100-NVL", 8, 1),
        ("8×H200", "8xH200", "H200", 8, 1),
        ("H200x8", "8xH200", "H200", 8, 1),
        ("H200:8", "8xH200", "H200", 8, 1),
        ("gpu_8x_h100_sxm5", "8xH100-SXM5-80GB", "H100-SXM5-80GB", 8, 1),
        ("gpu:l4:2", "2xL4", "L4", 2, 1),
    ],
)
def test_the_forms_of_the_contract_and_of_launchers(text: str, spec: str, name: str, gpus: int, nodes: int) -> None:
    target = parse_target(text)
    assert (target.spec, target.name, target.gpus, target.nodes) == (spec, name, gpus, nodes)
    assert parse_target(target.spec) == target


@pytest.mark.parametrize("text", ["A100-80GB", "a100-80gb", "A100 80GB", "a100_80g", " A100.80GB ", "A100-80GiB"])
def test_case_and_separators_are_free(text: str) -> None:
    assert parse_target(text) == parse_target("A100-80GB")


@pytest.mark.parametrize(
    ("device_name", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIE-80GB"),
        ("NVIDIA H100 80GB HBM3", "H100-80GB"),
        ("NVIDIA H100 NVL", "H100-NVL"),
        ("NVIDIA GeForce RTX 3090", "RTX-3090"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX-6000-Ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX-PRO-6000"),
        ("Tesla V100-SXM2-16GB", "V100-16GB"),
        ("Tesla T4", "T4"),
        ("NVIDIA GB10", "GB10"),
        ("AMD Instinct MI300X", "MI300X"),
    ],
)
def test_the_name_that_torch_reports_is_understood(device_name: str, name: str) -> None:
    assert parse_target(device_name).name == name


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("16GiB", 16 * GIB),
        ("16GB", 16_000_000_000),
        ("16 g", 16_000_000_000),
        ("15.5GiB", 31 * GIB // 2),
        ("512MiB", 512 * MIB),
    ],
)
def test_a_bare_size_is_what_it_says(text: str, size: int) -> None:
    target = parse_target(text)
    assert target.usable_bytes == target.usable_high_bytes == size
    assert (target.compute_capability, target.bf16, target.fp8) == (None, None, None)


def test_a_decimal_size_says_that_the_card_of_that_name_has_more() -> None:
    target = parse_target("24GB")
    assert target.assumption is not None
    assert "22.4 GiB" in target.assumption
    assert "`24GiB`" in target.assumption
    assert parse_target("24GiB").assumption is None


@pytest.mark.parametrize("target", ["A100", "24GB"])
def test_what_a_target_was_taken_as_is_said_with_the_prediction(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("memlint: 1\nmodel: Qwen/Qwen3-8B\n")
    sentence = parse_target(target).assumption
    assert sentence is not None
    for command in (["estimate", str(job), "--target", target], ["check", str(job), "--target", target]):
        assert main([*command, "--offline", "--isolated"]) == 1
        assert sentence in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("T4", 14.56, 15.83),  # newer drivers; Windows
        ("RTX 4090", 23.52, 23.99),
        ("A100-80GB", 79.14, 79.35),  # SXM with newer drivers; with older ones
        ("A40", 44.4, 47.55),  # ECC on, the default; off
        ("p4d.24xlarge", 39.39, 39.59),
        ("B300", 267.69, 267.69),
    ],
)
def test_usable_memory_is_what_cuda_reports_not_the_number_on_the_box(text: str, low: float, high: float) -> None:
    target = parse_target(text)
    assert target.usable_bytes / GIB == pytest.approx(low, abs=0.01)
    assert target.usable_high_bytes / GIB == pytest.approx(high, abs=0.01)


@pytest.mark.parametrize(
    ("text", "taken_as", "says"),
    [
        ("A100", "A100-40GB", "`A100-80GB`"),
        ("V100", "V100-16GB", "`V100-32GB`"),
        ("8xH100", "H100-80GB", "`H100-NVL`"),
        ("RTX 4060 Ti", "RTX-4060-Ti-8GB", "`RTX-4060-Ti-16GB`"),
    ],
)
def test_a_name_of_several_sizes_is_taken_as_launchers_do_and_says_so(text: str, taken_as: str, says: str) -> None:
    target = parse_target(text)
    assert target.name == taken_as
    assert target.assumption is not None
    assert says in target.assumption
    assert target.assumption in target.source


def test_a_partition_settles_which_size_is_meant() -> None:
    assert parse_target("A100:3g.40gb").name == "A100-80GB:3g.40gb"
    assert parse_target("A100:3g.40gb").assumption is None
    assert parse_target("A100:3g.20gb").name == "A100-40GB:3g.20gb"


def test_a_partition_with_media_engines_has_the_same_memory() -> None:
    assert parse_target("H100-80GB:1g.10gb+me") == parse_target("H100-80GB:1g.10gb")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "a target is text such as"),
        ("A100-8OGB", "did you mean `A100-80GB`"),
        ("rtx4909", "did you mean `RTX-4090`"),
        ("p4d.24xlage", "did you mean `p4d.24xlarge`"),
        ("zzz", "unknown target `zzz`; `memlint targets` lists what is known"),
        ("RTX 6000", "is ambiguous: RTX 6000 names cards of 24, 48 and 96 GB; write `Quadro-RTX-6000`"),
        ("0xA100-80GB", "no possible number of GPUs"),
        ("9999999xA100-80GB", "no possible number of GPUs"),
        ("2x8xp4d.24xlarge", "counts GPUs twice: `p4d.24xlarge` already has 8, write `16xp4d.24xlarge`"),
        ("A100-80GB:9g.1gb", "A100-80GB has no partition `9g.1gb`; write `1g.10gb`"),
        ("rtx4090:1g.5gb", "no MIG partition of RTX-4090 is known"),
        ("A100-80GB:", "ends in a colon"),
        ("16GiB:1g.5gb", "partition of a bare size"),
        ("0GiB", "no memory size of one GPU"),
        ("9999999GiB", "no memory size of one GPU"),
        ("x" * 5000, "is too long"),
    ],
)
def test_a_text_that_is_no_target_is_answered_in_a_sentence(text: str, says: str) -> None:
    with pytest.raises(UserError) as error:
        parse_target(text)
    assert says in str(error.value)
    assert len(str(error.value)) < 400


@given(st.text(alphabet="0123456789xX*:. -_+gGiIbBaA10hHpPrRtTuU×é\n\x00", max_size=40))
def test_any_text_is_a_target_or_a_sentence(text: str) -> None:
    try:
        target = parse_target(text)
    except UserError:
        return
    assert target.gpus >= target.nodes >= 1
    assert 0 < target.usable_bytes <= target.usable_high_bytes
    assert parse_target(target.spec).usable_bytes == target.usable_bytes


def test_every_known_name_leads_to_its_own_gpu() -> None:
    for gpu in gpus():
        for text in (gpu.name, *gpu.aliases):
            assert parse_target(text).name == gpu.name, text
        assert gpu.source
        assert gpu.usable_bytes <= gpu.usable_high_bytes <= 1.02 * gpu.marketing_gb * GIB
    for instance in instances():
        target = parse_target(instance.name)
        assert (target.name, target.gpus) == (instance.gpu, instance.gpus)
        assert instance.source


def test_a_partition_never_holds_more_than_its_gpu() -> None:
    some = 0
    for gpu in gpus():
        for part in partitions(gpu):
            some += 1
            assert part.usable_bytes <= gpu.usable_high_bytes, (gpu.name, part.profile)
            assert parse_target(f"{gpu.name}:{part.profile}").usable_bytes == part.usable_bytes
    assert some > 50


def test_precision_support_follows_compute_capability() -> None:
    for gpu in gpus():
        if gpu.compute_capability is not None:
            assert gpu.bf16 == (gpu.compute_capability >= (8, 0)), gpu.name
            assert gpu.fp8 == (gpu.compute_capability >= (8, 9)), gpu.name
    assert not gpu_named("T4").bf16
    assert gpu_named("L4").fp8


@pytest.mark.skipif(not SHARED.exists(), reason="the shared hardware tables are not beside this checkout")
def test_the_shared_gpu_table_is_covered_row_by_row() -> None:
    with (SHARED / "gpus.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) >= 50
    for row in rows:
        target = parse_target(CSV_NAMES.get(row["name"], row["name"]))
        if row["reported_total_gib"]:
            reported = float(row["reported_total_gib"])
            # the table's own note of another driver or system may lie lower or higher
            assert target.usable_bytes / GIB <= reported + 0.01, row["name"]
            assert target.usable_high_bytes / GIB >= reported - 0.01, row["name"]
            assert target.usable_bytes / GIB >= 0.93 * reported, row["name"]
        if row["compute_capability"]:
            assert target.compute_capability == tuple(int(part) for part in row["compute_capability"].split("."))
            assert target.bf16 == (row["bf16"] == "yes"), row["name"]
            assert target.fp8 == (row["fp8"] == "yes"), row["name"]


@pytest.mark.skipif(not SHARED.exists(), reason="the shared hardware tables are not beside this checkout")
def test_the_shared_instance_table_is_covered_row_by_row() -> None:
    with (SHARED / "instances.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) >= 79
    for row in rows:
        target = parse_target(row["name"])
        assert target.gpus == int(row["count"]), row["name"]
        expected = parse_target(CSV_NAMES.get(row["gpu"], row["gpu"]))
        assert target.name == expected.name, row["name"]


@pytest.mark.parametrize(
    ("file", "row", "said"),
    [
        pytest.param("gpus.csv", "Foo,,24,10GB,10GiB,8.0,here", "`10GB` is no size such as", id="another unit"),
        pytest.param("gpus.csv", "Foo,,24,10GiB,10GiB,ampere,here", "`capability` is one such as 8.0", id="words"),
        pytest.param("gpus.csv", "Foo,,24,10GiB,10GiB,8.0,", "no source for what Foo reports", id="no source"),
        pytest.param("gpus.csv", "Foo,,24,10GiB", "the row has not the 7 cells", id="too few cells"),
        pytest.param("gpus.csv", "Foo,B200,24,10GiB,10GiB,8.0,here", "`B200` is a name of B200 and of Foo", id="taken"),
        pytest.param("instances.csv", "here,Foo,1,x.large", "there is no GPU Foo", id="an unknown GPU"),
    ],
)
def test_a_row_that_cannot_be_taken_is_named(file: str, row: str, said: str, tmp_path: Path) -> None:
    folder = tmp_path / "benchmarks" / "generate"
    shutil.copytree(ROOT / "benchmarks" / "generate", folder, ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / file).open("a", encoding="utf-8") as stream:
        stream.write(row + "\n")
    done = subprocess.run(
        [sys.executable, str(folder / "hardware.py"), "--check"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert said in done.stderr and "Traceback" not in done.stderr


def test_the_generated_modules_are_current() -> None:
    script = ROOT / "benchmarks" / "generate" / "hardware.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_looking_up_a_gpu_loads_no_instance_table_and_no_difflib() -> None:
    code = (
        "import sys; from memlint.hardware.parse import parse_target; parse_target('8xA100-80GB');"
        "print([m for m in ('difflib', 'csv', 'pathlib', 'memlint.hardware.instances') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
