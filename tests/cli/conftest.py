"""A small project with one model's shape, checked in process."""

from __future__ import annotations

import json

import pytest

from memlint.__main__ import main
from memlint.settings.load import forget_settings

SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 16,
    "head_dim": 64,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "torch_dtype": "bfloat16",
}
"""The shape of Llama-3.2-1B."""

TOO_BIG = """\
memlint: 1
model: shapes/one-b
training:
  micro_batch_size: 32
  sequence_length: 4096
"""

SMALL = """\
memlint: 1
model: shapes/one-b
training:
  micro_batch_size: 1
  sequence_length: 1024
  precision: bf16
  optimizer: adamw-8bit
"""

WORKFLOW = "on: push\njobs: {a: {runs-on: ubuntu-latest}}\n"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A repository with one file that does not fit 24 GiB, one that does, and one that is no config."""
    forget_settings()
    monkeypatch.chdir(tmp_path)
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / ".git").mkdir()
    (tmp_path / "shapes" / "one-b").mkdir(parents=True)
    (tmp_path / "shapes" / "one-b" / "config.json").write_text(json.dumps(SHAPE))
    (tmp_path / "big.yaml").write_text(TOO_BIG)
    (tmp_path / "small.yaml").write_text(SMALL)
    (tmp_path / "ci.yaml").write_text(WORKFLOW)
    return tmp_path


@pytest.fixture
def memlint(capsys):
    """Runs a command in process: (exit code, stdout, stderr)."""

    def run(*argv):
        code = main([str(word) for word in argv])
        out, err = capsys.readouterr()
        return code, out, err

    return run
