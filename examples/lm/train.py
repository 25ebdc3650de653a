"""A small language model, trained by several workers: with DiLoCo, or as one large batch.

    runner start examples/lm/diloco.toml      # needs PyTorch: pip install -e '.[examples]'

A byte-level GPT learns the text of Python's own help pages, which are in every Python. Each worker has a part
of the text; the last tenth is held out. The same script does both jobs, as ``LM_MODE`` says:

* ``local``: ``LM_STEPS`` steps of AdamW a round, whose state stays on the worker. With the outer step
  ``optimizer = "diloco"`` that is DiLoCo (Douillard et al. 2023, https://arxiv.org/abs/2311.08105).
* ``gradient``: hands back the params minus one batch's gradient. With ``optimizer = "fedadam"`` that is Adam
  on the coordinator with the batches of all workers as one, as data-parallel training does it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

BATCH = 16  # sequences a step
CONTEXT = 64  # bytes a sequence
WIDTH = 64
HEADS = 4
LAYERS = 2
INNER_RATE = 1e-3  # of AdamW
EVALUATE_EVERY = 50  # steps between looks at the held-out text
STATE = Path("inner.pt")


class Block(nn.Module):
    """Attention to what came before, then a layer of its own for each byte."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Take and return (batch, context, width)."""
        heads = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, WIDTH // HEADS)).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.narrow(functional.gelu(self.wide(self.norm2(x))))


class Model(nn.Module):
    """A GPT over bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256, bias=False)

    def loss(self, data: Tensor) -> Tensor:
        """Return the mean cross-entropy in nats a byte; data is (batch, context + 1)."""
        x = self.token(data[:, :-1]) + self.position.weight
        logits = self.head(self.norm(self.blocks(x)))
        return functional.cross_entropy(logits.flatten(0, 1), data[:, 1:].flatten())


def text() -> tuple[Tensor, Tensor]:
    """Return the bytes to learn from and those held out."""
    from pydoc_data.topics import topics  # noqa: PLC0415 - a megabyte that --init doesn't need

    data = torch.tensor(list("\n".join(topics[name] for name in sorted(topics)).encode()))
    cut = len(data) * 9 // 10
    return data[:cut], data[cut:]


def batch(data: Tensor, count: int, draw: torch.Generator) -> Tensor:
    """Return so many sequences, (count, context + 1), from anywhere in the data."""
    starts = torch.randint(len(data) - CONTEXT, (count, 1), generator=draw)
    return data[starts + torch.arange(CONTEXT + 1)]


def main() -> None:
    """Take part in all rounds."""
    from roundlog_rounds import rounds  # noqa: PLC0415 - is there on workers only

    seed, rank, world = (int(os.environ[f"ROUNDLOG_{name}"]) for name in ("SEED", "RANK", "WORLD_SIZE"))
    local, steps = os.environ["LM_MODE"] == "local", int(os.environ["LM_STEPS"])
    torch.set_num_threads(1)
    learn, held_out = text()
    mine = learn.chunk(world)[rank]
    model = Model()
    inner = torch.optim.AdamW(model.parameters(), lr=INNER_RATE, weight_decay=0.0)
    if local and STATE.exists():
        inner.load_state_dict(torch.load(STATE, weights_only=True))
    for r in rounds():
        model.load_state_dict(load_file(r.params))
        if rank == 0 and r.round * steps % EVALUATE_EVERY == 0:
            with torch.no_grad():
                draw = torch.Generator().manual_seed(seed)
                r.report(held_out_loss=model.loss(batch(held_out, 256, draw)).item())
        draw = torch.Generator().manual_seed((seed * 1_000_003 + r.round) * 1009 + rank)
        total = 0.0
        for _ in range(steps):
            inner.zero_grad()
            loss = model.loss(batch(mine, BATCH, draw))
            loss.backward()
            total += loss.item()
            if local:
                inner.step()
        weights = model.state_dict()
        if local:
            torch.save(inner.state_dict(), STATE)
        else:
            weights = {name: value.detach() - value.grad for name, value in model.named_parameters()}
        save_file(weights, r.weights)
        r.report(loss=total / steps, num_samples=steps * BATCH)


if __name__ == "__main__":
    if "--init" in sys.argv:
        torch.manual_seed(int(os.environ["ROUNDLOG_SEED"]))
        save_file(Model().state_dict(), os.environ["ROUNDLOG_PARAMS"])
    else:
        main()
