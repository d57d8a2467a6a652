"""What the process reward service is started with, and what a request may ask for."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from guerdon_services.runtime.scorer import ScorerOptions, ScorerSettings
from guerdon_services.scoring import Temperature

#: More would take rewards and gradients out of fp32.
Beta = Annotated[float, Field(gt=0, le=1000)]


class ProcessRewardSettings(ScorerSettings):
    """Start-up settings; beta, lr and grad_clip are those of PRIME's released script."""

    #: Plain Hugging Face folder: the frozen reference, and the PRM of version 0.
    model: Path
    #: Weights folder: every version is published here, and a restarted service resumes from its latest one.
    weights_dir: Path
    beta: Beta = 0.05
    lr: Annotated[float, Field(gt=0)] = 1e-6
    grad_clip: Annotated[float, Field(gt=0)] = 10.0
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    #: Rows x length of one forward. Changes memory and speed, never the result beyond rounding.
    max_tokens: Annotated[int, Field(ge=1)] = 16_384
    #: Versions kept: how far back an update's `base_version` can reach.
    keep_last: Annotated[int, Field(ge=1)] = 2
    threads: Annotated[int, Field(ge=1)] = 1
    #: Seeds torch. Dropout is off in training too, so results do not depend on it.
    seed: int = 0
    device: str = "cpu"
    #: Jinja text for chat prompts, where the tokenizer has none or another one.
    chat_template: str | None = None


class ProcessRewardOptions(ScorerOptions):
    """Per-request options; an update's apply to its loss and to the scores it returns alike."""

    #: Scale of rewards and of the loss's logit; the service's setting when absent.
    beta: Beta | None = None
    #: token: one reward per token. response: their sum on the last token, 0 elsewhere.
    granularity: Literal["token", "response"] = "token"
    #: Divides the logits of both models.
    temperature: Temperature = 1.0
    #: batch: divide by the largest absolute return-to-go of the update's samples. Updates only: the items of a
    #: score request reach the model in batches that also hold other requests' items.
    norm: Literal["none", "batch"] = "none"
