"""The loop's policy and task: two digits in, four digits out, each of them verifiable; about a million parameters.

Rollout workers sample with numpy (no torch to import, on a machine of two cores); the learner trains with torch: GRPO
as published, advantages normalized within a group of answers to one prompt, the clipped ratio to the worker's own
probabilities, no KL term.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

HIDDEN = 960
POSITIONS, DIGITS = 4, 10
INPUTS = 2 * DIGITS + POSITIONS
CLIP = 0.2
Weights = dict[str, npt.NDArray[np.float32]]
Prompt = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Answer:
    """`logp` of each token under the weights that chose it."""

    prompt: Prompt
    tokens: tuple[int, ...]
    logp: tuple[float, ...]
    reward: float


def expected(prompt: Prompt) -> tuple[int, ...]:
    a, b = prompt
    return (a + b) % DIGITS, abs(a - b), (a * b) % DIGITS, max(a, b)


def reward(prompt: Prompt, tokens: tuple[int, ...]) -> float:
    """The share of right digits."""
    return sum(t == e for t, e in zip(tokens, expected(prompt), strict=True)) / POSITIONS


def inputs(prompts: list[Prompt]) -> npt.NDArray[np.float32]:
    """(len(prompts) * POSITIONS, INPUTS): both digits and the position, one-hot."""
    x = np.zeros((len(prompts), POSITIONS, INPUTS), np.float32)
    for i, (a, b) in enumerate(prompts):
        x[i, :, a] = x[i, :, DIGITS + b] = 1
        x[i, range(POSITIONS), 2 * DIGITS + np.arange(POSITIONS)] = 1
    return x.reshape(-1, INPUTS)


def initial(seed: int) -> Weights:
    rng = np.random.default_rng(seed)
    sizes = (INPUTS, HIDDEN, HIDDEN, DIGITS)
    found: Weights = {}
    for i, (n, m) in enumerate(pairwise(sizes)):
        scale = np.sqrt(2 / n) * (0.1 if i == 2 else 1.0)
        found[f"layer{i}.weight"] = (rng.standard_normal((n, m)) * scale).astype(np.float32)
        found[f"layer{i}.bias"] = np.zeros(m, np.float32)
    return found


def sample(weights: Weights, prompts: list[Prompt], rng: np.random.Generator) -> list[Answer]:
    """One answer to each prompt."""
    x = inputs(prompts)
    for i in range(3):
        x = x @ weights[f"layer{i}.weight"] + weights[f"layer{i}.bias"]
        x = np.maximum(x, 0) if i < 2 else x
    logp = x - x.max(1, keepdims=True)
    logp -= np.log(np.exp(logp).sum(1, keepdims=True))
    chosen = (logp + rng.gumbel(size=logp.shape)).argmax(1)
    tokens = chosen.reshape(-1, POSITIONS).tolist()
    probabilities = logp[np.arange(len(chosen)), chosen].reshape(-1, POSITIONS).tolist()
    return [
        Answer(prompt, tuple(t), tuple(p), reward(prompt, tuple(t)))
        for prompt, t, p in zip(prompts, tokens, probabilities, strict=True)
    ]


class Learner:
    """Adam on GRPO's objective. `group` answers to one prompt stand beside each other in a batch."""

    def __init__(self, seed: int, group: int, rate: float = 2e-3) -> None:
        import torch

        torch.manual_seed(seed)
        torch.set_num_threads(1)
        self._torch, self._group = torch, group
        self.parameters: dict[str, Any] = {
            name: torch.tensor(value, requires_grad=True) for name, value in initial(seed).items()
        }
        self._adam = torch.optim.Adam(self.parameters.values(), lr=rate)

    def weights(self) -> Weights:
        return {name: p.detach().numpy().copy() for name, p in self.parameters.items()}

    def step(self, answers: list[Answer]) -> float:
        """One update; returns the mean reward of the batch."""
        torch, count = self._torch, len(answers)
        rewards = np.array([a.reward for a in answers], np.float32).reshape(-1, self._group)
        advantages = (rewards - rewards.mean(1, keepdims=True)) / (rewards.std(1, keepdims=True) + 1e-4)
        x = torch.from_numpy(inputs([a.prompt for a in answers]))
        for i in range(3):
            x = x @ self.parameters[f"layer{i}.weight"] + self.parameters[f"layer{i}.bias"]
            x = torch.relu(x) if i < 2 else x
        tokens = torch.tensor([a.tokens for a in answers]).reshape(-1, 1)
        logp = torch.log_softmax(x, 1).gather(1, tokens).reshape(count, POSITIONS)
        ratio = torch.exp(logp - torch.tensor([a.logp for a in answers]))
        advantage = torch.from_numpy(advantages.reshape(count, 1))
        loss = -torch.min(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).mean()
        self._adam.zero_grad()
        loss.backward()
        self._adam.step()
        return float(rewards.mean())


def prompts_of(count: int, group: int, rng: np.random.Generator) -> list[Prompt]:
    """`count` prompts, each `group` times."""
    drawn = rng.integers(0, DIGITS, (count // group, 2))
    return [(int(a), int(b)) for a, b in drawn for _ in range(group)]


def reward_curve(lag: int, seed: int, steps: int, batch: int, group: int, rate: float = 2e-3) -> list[float]:
    """Mean reward by step when every rollout is made with weights `lag` steps old; 0 is the co-located learner."""
    learner, rng = Learner(seed, group, rate), np.random.default_rng(seed)
    kept = [learner.weights()]
    curve = []
    for _ in range(steps):
        old = kept[max(0, len(kept) - 1 - lag)]
        curve.append(learner.step(sample(old, prompts_of(batch, group, rng), rng)))
        kept = [*kept, learner.weights()][-(lag + 1) :]
    return curve
