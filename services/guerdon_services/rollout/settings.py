"""How a rollout service starts."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from guerdon_services.models import WeightsLocation
from guerdon_services.runtime.scorer import ScorerSettings


class RolloutSettings(ScorerSettings):
    """The policy, how it is run, and what a request may ask for."""

    #: A Hugging Face folder, or a `guerdon.weights` folder whose latest version is loaded.
    model: Path
    #: The `guerdon.weights` folder to follow, or the URL of one; `model` itself when absent.
    weights_dir: WeightsLocation | None = None
    engine: Literal["auto", "transformers", "vllm"] = "auto"
    device: str = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"
    #: CPU threads of torch; on a shared machine more than one costs CPU.
    threads: Annotated[int, Field(ge=1)] = 1
    #: Rows decoded together.
    max_batch: Annotated[int, Field(ge=1)] = 64
    #: Tokens, prompts and responses together, whose keys and values are in memory at the same time.
    max_tokens: Annotated[int, Field(ge=1)] = 32_768
    #: The most that a request may ask for as `sampling.max_new_tokens`.
    max_new_tokens: Annotated[int, Field(ge=1)] = 16_384
    #: How long a batch waits to fill.
    max_wait_ms: Annotated[float, Field(ge=0)] = 10.0
    #: How long a request waits for its `min_version` to be published before it is `unavailable`.
    version_wait_s: Annotated[float, Field(ge=0)] = 30.0
    #: What OpenAI clients call the model; the name of the model's folder when absent.
    served_name: str | None = None
