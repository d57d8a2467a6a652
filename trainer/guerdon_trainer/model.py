"""The policy as the trainer sees it: log-probabilities of sampled tokens.

Shape suffixes: B responses, T response tokens, N response tokens of all rows in a row.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_layers import GradientCheckpointingLayer

from guerdon.logprobs import ScoredSequence, check_head, flat_logprobs, packs, same_attention
from guerdon.lora import Adapters, adapter_tensors
from guerdon_trainer.batch import Batch
from guerdon_trainer.distributed import whole

# Loading and saving take milliseconds here and would draw their bars through the live view.
transformers.utils.logging.disable_progress_bar()


def load_policy(folder: Path, device: torch.device) -> PreTrainedModel:
    """A causal language model in fp32, from a Hugging Face folder.

    fp32 because GSPO clips ratios at 3e-4, which is below the spacing of bf16 log-probabilities.

    Raises:
        ValueError: the architecture makes its logits in a way that `guerdon.logprobs` does not know.
    """
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True
    )
    # Module.to: the one that transformers wraps around it loses its types.
    nn.Module.to(model, device)
    check_head(model.eval())
    return model


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer that lies beside the weights."""
    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


class Policy(nn.Module):
    """A causal language model whose forward gives log-probs.

    A module of its own, so that FSDP, which gathers weights around a forward, has those of the head there too.
    """

    def __init__(
        self, model: PreTrainedModel, *, autocast: torch.dtype | None = None, adapters: Adapters | None = None
    ) -> None:
        super().__init__()
        self.model = model
        self.autocast = autocast
        self.adapters = adapters
        #: Whether one row may hold several sequences; tried here, before anything is sharded.
        self.packs = packs(model, 1)

    def forward(
        self, sequences: list[ScoredSequence], temperature: float, *, entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        """See `guerdon.logprobs.flat_logprobs`; log-probs are fp32 also where the layers run in bf16."""
        device = next(self.model.parameters()).device.type
        with torch.autocast(device, self.autocast, enabled=self.autocast is not None):
            return flat_logprobs(self.model, sequences, temperature=temperature, entropy=entropy)

    def bare(self) -> AbstractContextManager[None]:
        """Within it the policy has no adapters."""
        return nullcontext() if self.adapters is None else self.adapters.off()

    def learned_state(self) -> dict[str, Tensor]:
        """The tensors that training changes, as they are: whole or sharded."""
        state: dict[str, Tensor] = self.model.state_dict()
        return state if self.adapters is None else adapter_tensors(state)

    def published_state(self) -> dict[str, Tensor]:
        """The whole state of the plain model, adapters merged, on the CPU where it is sharded; all ranks must ask."""
        made: dict[int, Tensor] = {}  # tied weights are one tensor, and stay one
        state: dict[str, Tensor] = {}
        for name, tensor in self.model.state_dict(keep_vars=True).items():
            if id(tensor) not in made:
                made[id(tensor)] = whole(tensor)
            state[name] = made[id(tensor)]
        return state if self.adapters is None else self.adapters.merged(state)

    def published_adapters(self) -> dict[str, Tensor]:
        """The whole adapters; all ranks must ask."""
        state = adapter_tensors(self.model.state_dict(keep_vars=True))
        return {name: whole(tensor) for name, tensor in state.items()}

    def idle(self) -> Tensor:
        """A zero with zero gradients, for a rank without rows: all must take part in every forward and backward."""
        logps_N, _ = self([ScoredSequence([0], [0])], 1.0, entropy=False)
        return 0 * logps_N.sum()


def checkpoint_layers(model: PreTrainedModel) -> None:
    """Let every layer keep its input alone and compute the rest again for the gradient.

    Raises:
        ValueError: the architecture has no layers that can.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, GradientCheckpointingLayer)]
    if not layers:
        raise ValueError(f"{type(model).__name__} has no layers for gradient checkpointing")
    for layer in layers:
        # Not transformers' own switch, which works in training mode alone: that would also switch dropout on.
        layer.forward = _recomputed(model, layer.forward)


def _recomputed(model: PreTrainedModel, forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        again = same_attention(model)
        return cast(Any, checkpoint)(
            forward, *args, use_reentrant=False, context_fn=lambda: (nullcontext(), again), **kwargs
        )

    return run


def token_logprobs(
    policy: Policy, batch: Batch, temperature: float, *, entropy: bool = True
) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy (nats, fp32, with gradient) at each response token, (B, T).

    Logits are divided by `temperature`, as they were when the tokens were sampled. Cells outside the mask are 0, and
    so is every entropy without `entropy`. Some response must have a token.
    """
    logps_N, entropy_N = policy(_sequences(batch), temperature, entropy=entropy)
    logps_BT = _spread(logps_N, batch.mask_BT)
    return logps_BT, torch.zeros_like(logps_BT) if entropy_N is None else _spread(entropy_N, batch.mask_BT)


def _sequences(batch: Batch) -> list[ScoredSequence]:
    rows = zip(
        batch.input_ids_BS.tolist(), batch.prompt_lengths_B.tolist(), batch.lengths_B.tolist(), strict=True
    )
    return [ScoredSequence(ids[:start], ids[start:end]) for ids, start, end in rows if start < end]


def _spread(values_N: Tensor, mask_BT: Tensor) -> Tensor:
    """The values at the true cells of the mask, in their order; 0 elsewhere."""
    return torch.zeros(mask_BT.shape, device=values_N.device).masked_scatter(mask_BT, values_N)
