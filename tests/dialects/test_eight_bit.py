"""HF's Trainer keeps 32-bit states for embeddings under bitsandbytes' 8-bit optimizers, in every dialect on it."""

import pytest
from reading_support import read_text

from memlint.dialects.eight_bit import EIGHT_BIT
from memlint.dialects.names import HF_OPTIMIZERS

TRL = "model_name_or_path: acme/m\ndataset_name: acme/d\noutput_dir: out\nper_device_train_batch_size: 1\n"
HF = "model_name_or_path: acme/m\nnum_train_epochs: 1\nper_device_train_batch_size: 1\noutput_dir: o\n"
FACTORY = (
    "model_name_or_path: acme/m\nstage: sft\nfinetuning_type: full\ndataset: d\ntemplate: qwen\ncutoff_len: 512\n"
    "per_device_train_batch_size: 1\noutput_dir: out\n"
)
AXOLOTL = (
    "base_model: acme/m\ndatasets: [{path: acme/d, type: alpaca}]\nmicro_batch_size: 1\nnum_epochs: 1\n"
    "sequence_len: 512\n"
)
FILES = {
    "trl": (TRL, "optim"),
    "hf-trainer": (HF, "optim"),
    "llamafactory": (FACTORY, "optim"),
    "axolotl": (AXOLOTL, "optimizer"),
}


def kept(dialect: str, optimizer: str, **versions: str) -> bool:
    text, key = FILES[dialect]
    return read_text(f"{text}{key}: {optimizer}\n", versions=versions).jobs[0].training.fp32_embedding_states


@pytest.mark.parametrize("dialect", FILES)
@pytest.mark.parametrize("optimizer", sorted(EIGHT_BIT))
def test_bitsandbytes_keeps_fp32_states_of_embeddings(dialect, optimizer):
    assert kept(dialect, optimizer)


@pytest.mark.parametrize("dialect", FILES)
@pytest.mark.parametrize("optimizer", ["adamw_torch_8bit", "paged_adamw_32bit", "adamw_torch", "galore_adamw_8bit"])
def test_torchao_galore_and_whole_states_know_no_such_thing(dialect, optimizer):
    assert not kept(dialect, optimizer)


@pytest.mark.parametrize("dialect", FILES)
def test_the_trainer_before_4_52_looked_for_a_class_that_was_never_there(dialect):
    assert not kept(dialect, "adamw_bnb_8bit", transformers="4.51.3")
    assert kept(dialect, "adamw_bnb_8bit", transformers="4.52.1")


def test_the_names_are_the_trainers():
    assert set(HF_OPTIMIZERS) > EIGHT_BIT
