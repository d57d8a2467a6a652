"""How a rollout service starts."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from guerdon_services.models import WeightsLocation
from guerdon_services.runtime.scorer import ScorerSettings


class RolloutSettings(ScorerSettings):
    """The policy, how it is run, and what a request may ask for."""

    #: A Hugging Face folder, or a `guerdon.weights` folder whose latest version is loaded.
    model: Path
    #: The `guerdon.weights` folder to follow, or the URL of one; `model` itself when absent.
    weights_dir: WeightsLocation | None = None
    #: auto: vllm where it is installed for the device and runs the model, transformers elsewhere.
    engine: Literal["auto", "transformers", "vllm"] = "auto"
    device: str = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"
    #: CPU threads of torch; on a shared machine more than one costs CPU.
    threads: Annotated[int, Field(ge=1)] = 1
    #: Rows decoded together.
    max_batch: Annotated[int, Field(ge=1)] = 64
    #: Tokens, prompts and responses together, whose keys and values are in memory at the same time (transformers).
    max_tokens: Annotated[int, Field(ge=1)] = 32_768
    #: Memory for keys and values (vllm); where absent a gigabyte on CPUs and what vLLM finds free on GPUs.
    kv_cache_mb: Annotated[int, Field(ge=1)] | None = None
    #: What becomes of responses under way when new weights come (vllm). finish: they end under the old ones first.
    #: restart: they are sampled anew. keep: they go on under the new ones, and say so. Transformers always finishes.
    on_update: Literal["finish", "restart", "keep"] = "finish"
    #: Seconds that taking up new weights may take, and that `finish` waits before it restarts the rest (vllm).
    update_limit_s: Annotated[float, Field(gt=0)] = 300.0
    #: The largest rank of a LoRA adapter that may be published in place of whole weights; 0: whole weights only (vllm).
    max_lora_rank: Annotated[int, Field(ge=0, le=512)] = 0
    #: Further arguments of vLLM's engine, for example tensor_parallel_size; they win over ours.
    vllm: dict[str, JsonValue] = {}
    #: The most that a request may ask for as `sampling.max_new_tokens`.
    max_new_tokens: Annotated[int, Field(ge=1)] = 16_384
    #: How long a batch waits to fill.
    max_wait_ms: Annotated[float, Field(ge=0)] = 10.0
    #: How long a request waits for its `min_version` to be published before it is `unavailable`.
    version_wait_s: Annotated[float, Field(ge=0)] = 30.0
    #: What OpenAI clients call the model; the name of the model's folder when absent.
    served_name: str | None = None
