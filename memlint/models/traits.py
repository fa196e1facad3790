"""What a model's own code on the hub does unlike the class of transformers that it is computed as."""

from __future__ import annotations

LOSS_IN_OWN_DTYPE = "loss in the dtype of its logits"
"""modeling_qwen.py and modeling_baichuan.py shift the logits and hand them to CrossEntropyLoss as they are."""

NORMED_HEAD = "normed head"
"""NormHead of Baichuan 2's modeling_baichuan.py: in training the head's rows are normalised in every forward."""

EXPERT_MODULES = "experts are modules"
"""modeling_deepseek.py of DeepSeek MoE keeps each expert as a module of linear layers, and has one softmax router."""

UNEVEN_LAYERS = "layers differ"
"""Layers of the Llama shape have heads and widths of their own, or lack a part (estimate/families/uneven.py)."""

MASK_PER_LAYER = "mask per layer"
"""Qwen's code of August 2023: QWenAttention registers a [P, P] bool mask in every layer, P = max_position_embeddings
(as kept in modelscope 1.9.5, models/nlp/qwen/backbone.py:154). Later revisions register one for the model, then none,
so only a job of that day has it."""

ALIBI_MASK = "ALiBi in the mask"
"""Baichuan 13B, of either edition: no rotary embeddings, but a mask with a matrix for every head
(estimate/families/baichuan.py)."""

PACKED = "one product for queries, keys and values"
"""modeling_baichuan.py calls it ``W_pack``, and takes them out of it one by one."""

SPLIT = "one product, split into queries, keys and values"
"""modeling_qwen.py of Qwen's first generation calls it ``c_attn``."""

CHATGLM = "ChatGLM's own code"
"""modeling_chatglm.py, of ChatGLM 2 and 3 and of GLM-4 as first published (estimate/families/chatglm.py)."""

TOKENS_FIRST = "tokens first"
"""Of these ChatGLM 2 and 3: hidden states are [tokens, rows, features]."""
