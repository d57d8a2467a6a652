r"""A tiny policy built on the spot: a Llama of 100k parameters, or a Mixtral, that has seen sloppy arithmetic.

Not a Qwen2, because AutoTokenizer replaces whatever tokenizer lies beside a Qwen2 by Qwen's own byte-level BPE.

Shapes: B sequences, T tokens. The vocabulary is the alphabet of `guerdon_trainer.arithmetic` plus pad, eos and one
token for every other character; `\boxed{` is one token, so that a response is short and the math service reads it
like any other.
"""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from guerdon_trainer import arithmetic
from guerdon_trainer.prepare.policies import TinyPolicy

PAD, PAD_ID = "<pad>", 0
EOS, EOS_ID = "<eos>", 1
ALPHABET = (*"0123456789", "+", "=", ";", "\\boxed{", "}")
#: Services are sent any text; the policy never writes this one, as it never saw it.
UNKNOWN = "<unk>"

_CHAT_TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token per symbol, and UNKNOWN for any other character."""
    vocabulary = {token: index for index, token in enumerate((PAD, EOS, *ALPHABET, UNKNOWN))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\\boxed\{|[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        chat_template=_CHAT_TEMPLATE,
    )


def build_model(config: TinyPolicy, tokenizer: PreTrainedTokenizerFast, *, seed: int) -> PreTrainedModel:
    """The untrained model; the same `seed` gives the same weights."""
    shape: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.key_value_heads,
        "intermediate_size": config.intermediate_size,
        "max_position_embeddings": config.context,
        "tie_word_embeddings": True,
        "pad_token_id": PAD_ID,
        "eos_token_id": EOS_ID,
        "bos_token_id": None,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _untrained(config.experts, shape)
    model.generation_config = GenerationConfig(eos_token_id=EOS_ID, pad_token_id=PAD_ID, do_sample=True)
    return model


def _untrained(experts: int, shape: dict[str, Any]) -> PreTrainedModel:
    if experts == 1:
        return LlamaForCausalLM(LlamaConfig(**shape))
    return MixtralForCausalLM(
        MixtralConfig(**shape, num_local_experts=experts, num_experts_per_tok=2, sliding_window=None)
    )


def write(config: TinyPolicy, folder: Path, *, seed: int, progress: Callable[[str], None]) -> None:
    """Build the model, warm it up and save it as a Hugging Face folder."""
    tokenizer = build_tokenizer()
    model = build_model(config, tokenizer, seed=seed)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    progress(
        f"tiny policy: {parameters:,} parameters; warm-up on {config.warmup_steps} batches of a deliberately "
        f"sloppy teacher that forgets {config.forget_carry:.0%} of the carries"
    )
    warm_up(model, tokenizer, config, seed=seed, progress=progress)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def warm_up(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    config: TinyPolicy,
    *,
    seed: int,
    progress: Callable[[str], None],
) -> None:
    """Supervised steps on the sloppy teacher's responses; the loss is on response tokens only."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=config.warmup_lr, betas=(0.9, 0.95), weight_decay=0.0
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: _lr_share(step / config.warmup_steps)
    )
    model.train()
    batches = _batches(config, tokenizer, seed)
    for step in range(1, config.warmup_steps + 1):
        ids_BT, labels_BT = next(batches)
        loss = model(input_ids=ids_BT, labels=labels_BT).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 100 == 0:
            progress(f"warm-up {step}/{config.warmup_steps}, loss {loss.item():.3f}")
    model.eval()


def _lr_share(done: float) -> float:
    """Share of the peak learning rate after the share `done` of the steps: 5 % up, the last 30 % down."""
    return min(1.0, 0.01 + done / 0.05, (1.0 - done) / 0.3)


def _batches(
    config: TinyPolicy, tokenizer: PreTrainedTokenizerFast, seed: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Right-padded token ids and labels (-100 on prompt and padding)."""
    rng = random.Random(f"guerdon-warmup-{seed}")
    while True:
        examples = [_example(config, rng) for _ in range(config.warmup_batch)]
        prompts = tokenizer([prompt for prompt, _ in examples]).input_ids
        responses = tokenizer([response + EOS for _, response in examples]).input_ids
        width = max(len(prompt) + len(response) for prompt, response in zip(prompts, responses, strict=True))
        ids_BT = torch.full((len(examples), width), PAD_ID)
        labels_BT = torch.full((len(examples), width), -100)
        for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
            length = len(prompt) + len(response)
            ids_BT[row, :length] = torch.tensor(prompt + response)
            labels_BT[row, len(prompt) : length] = torch.tensor(response)
        # Causal attention: right padding changes nothing before it, so no attention mask is needed.
        yield ids_BT, labels_BT


def _example(config: TinyPolicy, rng: random.Random) -> tuple[str, str]:
    """A prompt that is not held out, and what the sloppy teacher answers."""
    while True:
        digits = [rng.randrange(10) for _ in range(rng.randint(*config.terms))]
        if not arithmetic.held_out(digits):
            return arithmetic.prompt(digits), arithmetic.solution(
                digits, forget_carry=config.forget_carry, rng=rng
            )
