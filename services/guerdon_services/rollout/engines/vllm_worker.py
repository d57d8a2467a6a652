"""What runs inside vLLM's worker processes; nothing else imports this module.

vLLM has log-probs before temperature ("raw") and after truncation ("processed"). A trainer needs them between the two:
at the sampling temperature, over the whole vocabulary.
"""

# pyright: reportMissingImports=false
from typing import Any

import torch
from torch import Tensor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.v1.sample.sampler import Sampler

#: vLLM samples greedily below this temperature.
_GREEDY_BELOW = 1e-5


class WorkerExtension:
    """Mixed into vLLM's worker class; its methods are what `collective_rpc` can call."""

    def guerdon_ready(self) -> str:
        """Make the sampler report log-probs at the sampling temperature; the kind of the model runner.

        Raises:
            RuntimeError: this runner samples with something else.
        """
        runner: Any = self.model_runner  # type: ignore[attr-defined]
        if not isinstance(runner.sampler, Sampler):
            raise RuntimeError(f"{type(runner).__name__} samples with {type(runner.sampler).__name__}")
        runner.sampler.__class__ = _TemperedSampler
        return type(runner).__name__

    def guerdon_reloaded(self) -> None:
        """After other weights were read: see that the head has them too.

        A head that is the embedding itself has no tensor of its own to be read, and on CPUs keeps a packed copy.
        """
        model: Any = self.model_runner.get_model()  # type: ignore[attr-defined]
        for module in model.modules():
            if isinstance(module, ParallelLMHead) and module.quant_method is not None:
                module.quant_method.process_weights_after_loading(module)


class _TemperedSampler(Sampler):
    """vLLM's sampler, whose "raw" log-probs are at each row's temperature. Shapes: B rows, V vocabulary."""

    _temperature_B: Tensor | None = None

    def forward(self, logits: Tensor, sampling_metadata: Any, *arguments: Any, **named: Any) -> Any:
        self._temperature_B = sampling_metadata.temperature
        try:
            return super().forward(logits, sampling_metadata, *arguments, **named)
        finally:
            # Log-probs of prompts are asked of the same object, and stay at temperature 1.
            self._temperature_B = None

    def compute_logprobs(self, logits: Tensor) -> Tensor:  # type: ignore[override]
        logits_BV = logits.to(torch.float32)
        if self._temperature_B is not None:
            temperature_B = self._temperature_B
            greedy_B = temperature_B < _GREEDY_BELOW
            logits_BV = logits_BV / torch.where(greedy_B, 1.0, temperature_B)[:, None]
        return logits_BV.log_softmax(-1)
