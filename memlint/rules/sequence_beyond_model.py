"""Flag a sequence longer than the model has positions for.

## What it does
Compares the sequence length with the positions of the model's config. Always reported where positions stand in a table,
as the run would stop; with rotary positions, where shortening the sequence saves enough to matter.

## Why it matters
Tokens beyond the trained positions cost memory and, without rope scaling, teach little; a table of positions ends
before them.

## Example
```yaml
memlint: 1
model: openai-community/gpt2
training:
  sequence_length: 2048
```
```text
train.yaml:4:20: warning[MEM602] sequence-beyond-model: sequence length 2048 is beyond the model's 1024 positions
     |
   4 |   sequence_length: 2048
     |                    ^^^^ the position table ends before
```

## How the number is made
`max_position_embeddings` (or the class's own name for it) of the model's config, less the two rows that RoBERTa and its
like give to no token; the job is predicted again at that length.
"""

from __future__ import annotations

from typing import Iterator

from memlint.findings import Finding, Severity
from memlint.plan.options_scale import sequence
from memlint.rules.context import Context
from memlint.rules.meta import RuleMeta

META = RuleMeta(code="MEM602", name="sequence-beyond-model", severity=Severity.WARNING, since="0.1")


# fmt: off
_TABLES = frozenset((
    "gpt2", "gpt-sw3", "gpt_neo", "gpt_bigcode", "openai-gpt", "opt", "biogpt", "gptj", "codegen", "ctrl", "bert",
    "roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "roberta-prelayernorm", "data2vec-text", "distilbert",
    "electra", "albert", "mpnet", "ernie", "rembert", "megatron-bert", "layoutlm", "mobilebert", "convbert",
    "squeezebert", "nystromformer", "roformer", "bart", "mbart", "blenderbot", "blenderbot-small", "mvp", "plbart",
    "pegasus", "marian",
))
# fmt: on
"""Model types with a table of positions, learned or computed once, that a longer sequence indexes beyond its end
(nn.Embedding or a buffer in transformers 5.24 ``modeling_*.py``)."""


def check(context: Context) -> Iterator[Finding]:
    """Yield one finding where the sequence is longer than the model's positions."""
    architecture = context.job.architecture
    positions = architecture.longest_sequence if architecture is not None else None
    wanted = context.job.training.sequence_length
    if architecture is None or positions is None or wanted <= positions:
        return
    text = f"sequence length {wanted} is beyond the model's {positions} positions"
    at = ("training.sequence_length", "model")
    found = context.suggest(META, [sequence(positions)], message=lambda saved: text, at=at)
    if found is not None:
        yield found
    elif architecture.model_type in _TABLES:
        yield context.finding(META, text, at=at, label="the position table ends before")
