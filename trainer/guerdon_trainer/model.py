"""The policy as the trainer sees it: log-probabilities of sampled tokens.

Shape suffixes: B responses, T response tokens, S prompt and response tokens, N response tokens of all rows in a row,
D hidden size, V vocabulary.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import torch
import transformers
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from guerdon_trainer.batch import Batch

# Loading and saving take milliseconds here and would draw their bars through the live view.
transformers.utils.logging.disable_progress_bar()


def load_policy(folder: Path, device: torch.device) -> PreTrainedModel:
    """A causal language model in fp32, from a Hugging Face folder.

    fp32 because GSPO clips ratios at 3e-4, which is below the spacing of bf16 log-probabilities.
    """
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True
    )
    # Module.to: the one that transformers wraps around it loses its types.
    torch.nn.Module.to(model, device)
    return model.eval()


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer that lies beside the weights."""
    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


def token_logprobs(model: PreTrainedModel, batch: Batch, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probability (nats, fp32, with gradient) and entropy (nats, detached) at each response token, (B, T).

    Logits are divided by `temperature`, as they were when the tokens were sampled. Cells outside the mask are 0.
    """
    rows_N, columns_N = batch.mask_BT.nonzero(as_tuple=True)
    # Causal attention with right padding: no real token sees a padded one, so no attention mask is needed.
    hidden_BSD = model.base_model(input_ids=batch.input_ids_BS, use_cache=False).last_hidden_state
    # The logits at position s predict the token at s + 1; the head runs at those positions alone.
    predicting_N = batch.prompt_lengths_B[rows_N] + columns_N - 1
    head = cast(torch.nn.Module, model.get_output_embeddings())
    logits_NV = head(hidden_BSD[rows_N, predicting_N]).float() / temperature
    log_total_N = logits_NV.logsumexp(-1)
    chosen_N1 = logits_NV.gather(-1, batch.response_ids_BT[rows_N, columns_N, None])
    logps_BT = _spread(chosen_N1[:, 0] - log_total_N, batch.mask_BT)
    with torch.no_grad():
        log_all_NV = logits_NV - log_total_N[:, None]
        entropy_BT = _spread(-(log_all_NV.exp() * log_all_NV).sum(-1), batch.mask_BT)
    return logps_BT, entropy_BT


@torch.no_grad()
def all_logprobs(model: PreTrainedModel, batch: Batch, temperature: float, max_tokens: int) -> Tensor:
    """Log-probabilities of a whole batch, in micro-batches, without gradient, shape (B, T)."""
    logps_BT = torch.zeros(batch.mask_BT.shape, device=batch.mask_BT.device)
    for rows in micro_batches(batch, max_tokens):
        part = batch.select(rows)
        part_logps_BT, _ = token_logprobs(model, part, temperature)
        logps_BT[rows, : part_logps_BT.shape[1]] = part_logps_BT
    return logps_BT


def micro_batches(batch: Batch, max_tokens: int) -> Iterator[Tensor]:
    """Row numbers in parts of at most `max_tokens` padded tokens (at least one row), rows of like length together."""
    order_B = torch.argsort(batch.lengths_B, stable=True, descending=True)
    lengths = batch.lengths_B[order_B].tolist()
    start = 0
    while start < len(order_B):
        rows = max(1, max_tokens // lengths[start])
        yield order_B[start : start + rows]
        start += rows


def _spread(values_N: Tensor, mask_BT: Tensor) -> Tensor:
    """The values at the true cells of the mask, in their order; 0 elsewhere."""
    return torch.zeros(mask_BT.shape, device=values_N.device).masked_scatter(mask_BT, values_N)
