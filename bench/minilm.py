"""Real optimizer steps: MiniLM trained for a few steps on text at hand, published as bf16 casts of its fp32 masters.

The model is BERT with 6 layers, written out here in some forty lines of torch so that nothing else is needed. The loss
is SimCSE's: two dropout views of a sentence must find each other among the batch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import safetensors.torch
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

HEADS, LAYERS, DROPOUT, TEMPERATURE = 12, 6, 0.1, 0.05
BATCH, TOKENS = 16, 32
Weights = dict[str, Tensor]


def load(model: Path) -> Weights:
    weights = safetensors.torch.load_file(model / "model.safetensors")
    return {name: t for name, t in weights.items() if t.is_floating_point()}


def embed(weights: Weights, ids: Tensor, mask: Tensor) -> Tensor:
    """Mean-pooled, normalized sentence vectors."""

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(
            x, x.shape[-1:], weights[f"{name}.LayerNorm.weight"], weights[f"{name}.LayerNorm.bias"], 1e-12
        )

    def dense(x: Tensor, name: str) -> Tensor:
        return F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def heads(x: Tensor) -> Tensor:
        return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)

    x = weights["embeddings.word_embeddings.weight"][ids]
    x = x + weights["embeddings.position_embeddings.weight"][: ids.shape[1]]
    x = F.dropout(norm(x + weights["embeddings.token_type_embeddings.weight"][0], "embeddings"), DROPOUT)
    for layer in (f"encoder.layer.{i}" for i in range(LAYERS)):
        q, k, v = (heads(dense(x, f"{layer}.attention.self.{part}")) for part in ("query", "key", "value"))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :], dropout_p=DROPOUT)
        mixed = F.dropout(dense(mixed.transpose(1, 2).flatten(-2), f"{layer}.attention.output.dense"), DROPOUT)
        x = norm(x + mixed, f"{layer}.attention.output")
        inner = F.gelu(dense(x, f"{layer}.intermediate.dense"))
        x = norm(x + F.dropout(dense(inner, f"{layer}.output.dense"), DROPOUT), f"{layer}.output")
    pooled = (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    return F.normalize(pooled, dim=-1)


def batches(model: Path, texts: list[str], generator: np.random.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Sentences as word pieces that the vocabulary has whole; unknown words are [UNK]."""
    vocabulary = {word: i for i, word in enumerate((model / "vocab.txt").read_text(encoding="utf-8").splitlines())}
    sentences = [re.findall(r"[a-z]+|[0-9]|[^\sa-z0-9]", text.lower()) for text in texts]
    sentences = [words for words in sentences if len(words) > 4]
    while True:
        ids = torch.zeros(BATCH, TOKENS, dtype=torch.long)
        for row, pick in enumerate(generator.choice(len(sentences), BATCH, replace=False)):
            words = sentences[pick][: TOKENS - 2]
            row_ids = [
                vocabulary["[CLS]"],
                *(vocabulary.get(w, vocabulary["[UNK]"]) for w in words),
                vocabulary["[SEP]"],
            ]
            ids[row, : len(row_ids)] = torch.tensor(row_ids)
        yield ids, ids != 0


def train(
    model: Path, texts: list[str], learning_rate: float, warmup: int
) -> Iterator[dict[str, npt.NDArray[np.uint16]]]:
    """The bf16 casts after `warmup` steps of Adam, and after each further step."""
    torch.manual_seed(0)
    weights = {name: t.clone().requires_grad_() for name, t in load(model).items()}
    optimizer = torch.optim.AdamW(weights.values(), lr=learning_rate, weight_decay=0.0)
    for step, (ids, mask) in enumerate(batches(model, texts, np.random.default_rng(0))):
        if step >= warmup:
            yield {n: t.detach().to(torch.bfloat16).view(torch.uint16).numpy().copy() for n, t in weights.items()}
        one, two = embed(weights, ids, mask), embed(weights, ids, mask)
        loss = F.cross_entropy(one @ two.T / TEMPERATURE, torch.arange(len(ids)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
