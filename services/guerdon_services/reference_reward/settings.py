"""What the reference reward service is started with, and what a request may ask for."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from guerdon.functional import Aggregation
from guerdon_services.runtime.scorer import ScorerOptions, ScorerSettings
from guerdon_services.scoring import Temperature


class ReferenceRewardSettings(ScorerSettings):
    """Start-up settings."""

    #: Hugging Face folder, or a weights folder to follow.
    model: Path
    #: Weights folder to follow from `model` on, for rewards from the policy that is being trained.
    weights_dir: Path | None = None
    #: How long a request that asks for a newer version than is published waits before it is `unavailable`.
    version_wait_s: Annotated[float, Field(ge=0)] = 2.0
    #: Rows x length of one forward.
    max_tokens: Annotated[int, Field(ge=1)] = 16_384
    threads: Annotated[int, Field(ge=1)] = 1
    device: str = "cpu"
    #: Jinja text for chat prompts, where the tokenizer has none or another one.
    chat_template: str | None = None


class ReferenceRewardOptions(ScorerOptions):
    """Per-request options. RLPR: mean, rlpr, debias. VeriFree: product, verifree."""

    #: How the token probabilities become one number; product and mean_logprob are sums in log space.
    aggregation: Aggregation = "mean"
    #: What is put in place of the response's answer, and which tokens count; see docs/papers/.
    template: Literal["rlpr", "verifree"] = "rlpr"
    #: Divides the logits; the sampling temperature, in both papers.
    temperature: Temperature = 1.0
    #: Subtract the score of the same reference without any reasoning, and clip to [0, 1].
    debias: bool = False
    #: rlpr only: a response is valid only with exactly one <think> and one </think>.
    require_think: bool = False

    @model_validator(mode="after")
    def _debias_needs_probabilities(self) -> Self:
        if self.debias and self.aggregation == "mean_logprob":
            raise ValueError("debias needs an aggregation that is a probability, not mean_logprob")
        return self
