"""Train the small checkpoint in ``models/tiny-qwen3``: Qwen3's architecture over bytes, about 1.6 million weights.

    python models/train_tiny.py models/tiny-qwen3 --minutes 10

The text is the prose of the Python language reference as CPython ships it in ``pydoc_data.topics`` (PSF licence,
version 2), so nothing is downloaded. The tokens are bytes and one end-of-text token; the tokenizer is written as
ordinary tokenizer files that transformers loads. The result is for tests and demonstrations: it writes readable
English about Python and knows nothing.
"""

from __future__ import annotations

import argparse
import re
import time
from pathlib import Path
from pydoc_data.topics import topics

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

END = "<|endoftext|>"
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
CONTEXT = 256


def corpus() -> str:
    """Paragraphs of prose, one a line, with the end-of-text token after every topic."""
    documents = []
    for name in sorted(topics):
        paragraphs = (" ".join(p.split()) for p in re.split(r"\n\s*\n", topics[name]))
        prose = [p for p in paragraphs if len(p) > 60 and _share_of_words(p) > 0.85]
        if prose:
            documents.append("\n".join(prose))
    return END.join(documents)


def _share_of_words(paragraph: str) -> float:
    return sum(c.isalpha() or c in " ,." for c in paragraph) / len(paragraph)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer without merges: ids 0 to 255 are bytes, in its alphabet's order; 256 ends a text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END)
    fast.chat_template = CHAT_TEMPLATE
    return fast


def config(vocab_size: int) -> Qwen3Config:
    """The architecture: grouped heads, tied embeddings, head_dim other than hidden_size / num_attention_heads."""
    return Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        eos_token_id=vocab_size - 1,
        pad_token_id=vocab_size - 1,
        bos_token_id=None,
    )


def train(model: Qwen3ForCausalLM, data: torch.Tensor, minutes: float, batch: int = 8) -> None:
    """AdamW for so many minutes of processor time, the learning rate falling to zero with them; prints the loss."""
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.05)
    start = time.process_time()
    step, smooth = 0, 6.0
    while (spent := (time.process_time() - start) / (60 * minutes)) < 1:
        rate = 3e-3 * min(1.0, (step + 1) / 50) * (1 - spent)
        for group in optimizer.param_groups:
            group["lr"] = rate
        starts = torch.randint(0, len(data) - CONTEXT - 1, (batch,), generator=generator)
        rows = torch.stack([data[i : i + CONTEXT + 1] for i in starts.tolist()])
        logits = model(rows[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        smooth = 0.97 * smooth + 0.03 * loss.item()
        if step % 50 == 0:
            print(f"step {step} loss {smooth:.3f} nats a byte, {spent:.0%} of the time", flush=True)
        step += 1
    print(f"step {step} loss {smooth:.3f} nats a byte")


def main() -> None:
    """Train and write the checkpoint as bfloat16."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    tokenizer = byte_tokenizer()
    text = corpus()
    data = torch.tensor(tokenizer.encode(text))
    print(f"{len(data)} tokens of text")
    model = Qwen3ForCausalLM(config(len(tokenizer)))
    print(f"{sum(p.numel() for p in model.parameters())} weights")
    train(model, data, arguments.minutes)
    model.bfloat16().save_pretrained(arguments.folder)
    tokenizer.save_pretrained(arguments.folder)


if __name__ == "__main__":
    main()
