"""Values are read as the frameworks read them; what they could not read is a problem on its key."""

import pytest

from memlint.dialects.names import HF_OPTIMIZERS, NATIVE_TO_HF, attention_name, dtype_name
from memlint.dialects.native_choices import OPTIMIZERS
from memlint.dialects.spelling import near_misses
from memlint.dialects.values import Section, as_bool, as_float, as_int, as_mapping, as_strings, major, version_tuple


@pytest.mark.parametrize(
    ("value", "number"),
    [(4, 4), (4.0, 4), ("4", 4), ("1e9", 10**9), (5e8, 5 * 10**8), ("1_000", 1000), (4.5, None), (True, None),
     ("four", None), (None, None), ([4], None), ("9" * 50, None), (float("inf"), None), (float("nan"), None)],
)  # fmt: skip
def test_whole_numbers(value, number):
    assert as_int(value) == number


@pytest.mark.parametrize(
    ("value", "number"),
    [(0.5, 0.5), (1, 1.0), ("2e-5", 2e-5), ("nan", None), ("inf", None), (True, None), ("x", None), (10**400, None)],
)
def test_numbers(value, number):
    assert as_float(value) == number


@pytest.mark.parametrize(
    ("value", "flag"),
    [(True, True), ("true", True), ("No", False), (1, True), (0, False), (2, None), ("maybe", None), (None, None)],
)
def test_flags(value, flag):
    assert as_bool(value) == flag


def test_names_and_mappings():
    assert as_strings("q_proj, v_proj") == ("q_proj", "v_proj")
    assert as_strings(["q_proj"]) == ("q_proj",)
    assert as_strings({"a": 1}) is None
    assert as_mapping('{"a": 1}') == {"a": 1}
    assert as_mapping("[1]") is None
    assert as_mapping("{broken") is None


def test_a_bad_value_is_a_problem_and_reads_as_absent():
    problems = []
    section = Section(
        {"a": "four", "b": 0, "c": None, "d": "auto", "e": "nf5"}, problems, prefix=("part",), file="x.json"
    )
    assert section.integer("a") is None
    assert section.integer("b", minimum=1) is None
    assert section.integer("c") is None
    assert section.integer("d") is None
    assert section.text("e", ("nf4", "fp4")) is None
    assert [(p.code, p.key, p.file) for p in problems] == [
        ("MEM003", ("part", "a"), "x.json"),
        ("MEM003", ("part", "b"), "x.json"),
        ("MEM003", ("part", "e"), "x.json"),
    ]
    assert problems[0].message == "`a` must be a whole number, not `four`"
    assert problems[2].message == "`e: nf5` is not known; did you mean `nf4`?"


def test_only_a_near_miss_of_a_key_that_matters_is_reported():
    known = frozenset({"per_device_train_batch_size", "per_gpu_train_batch_size", "logging_steps"})
    wanted = ("per_device_train_batch_size",)
    data = {"per_device_train_batchsize": 1, "per_gpu_train_batch_size": 1, "our_own_key": 2, "loging_steps": 3}
    found = near_misses(data, wanted, known)
    assert [(p.code, p.key) for p in found] == [("MEM002", ("per_device_train_batchsize",))]
    assert near_misses({"per-device-train-batch-size": 1}, wanted, known)[0].message.endswith(
        "`per_device_train_batch_size`?"
    )
    # the right key is there too: the other is something else
    assert near_misses({"per_device_train_batch_size": 1, "per_device_train_batch_sizes": 1}, wanted, known) == []


def test_name_tables_lead_to_native_names_and_back():
    assert set(HF_OPTIMIZERS.values()) <= set(OPTIMIZERS)
    for native, name in NATIVE_TO_HF.items():
        expected = {"adamw-foreach": "adamw"}.get(native, native)
        assert HF_OPTIMIZERS[name] == expected
    assert attention_name("paged|flash_attention_2") == "flash"
    assert attention_name("kernels-community/vllm-flash-attn3") == "flash"
    assert attention_name("acme/attention") is None
    assert dtype_name("torch.bfloat16") == "bf16"
    assert dtype_name(16) is None


def test_versions():
    assert major("4.57.6", 5) == 4
    assert major(None, 5) == 5
    assert major("newest", 5) == 5
    assert version_tuple("0.18.0.dev0") == (0, 18, 0)
    assert version_tuple("2.7.1+cu128") == (2, 7, 1)
    assert version_tuple(None) == ()
