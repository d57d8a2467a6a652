"""What the reference reward service is started with, and what a request may ask for."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from guerdon.functional import Aggregation
from guerdon_services.models import FollowerSettings, WeightsLocation
from guerdon_services.reference_reward.shaping import Shaping
from guerdon_services.runtime.scorer import ScorerOptions
from guerdon_services.scoring import Temperature

#: Stands for the reference answer in the text of a custom template.
PLACE = "{reference}"


class CustomTemplate(BaseModel):
    """A template of one's own: the response up to a marker, then a text with the reference in it.

    The response's own tokens are kept up to the marker's end; `text` is tokenised apart from them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    #: Where in the response the answer begins. One that ends in a letter or digit must end a word there.
    marker: Annotated[str, Field(min_length=1, max_length=1000)] = "<answer>"
    #: Which marker counts. `only`: a response with another number of them than one has no place for an answer.
    occurrence: Literal["first", "last", "only"] = "first"
    #: What follows the marker, `{reference}` once in it.
    text: Annotated[str, Field(max_length=10_000)] = " {reference} </answer>"
    #: Whose tokens are scored: the reference's, or those of all of `text`.
    scored: Literal["reference", "text"] = "reference"

    @model_validator(mode="after")
    def _has_one_place(self) -> Self:
        count = self.text.count(PLACE)
        if count != 1:
            raise ValueError(f"text must hold {PLACE} exactly once, not {count} times")
        if not self.marker.strip():
            raise ValueError("marker must not be blank")
        return self


class ReferenceRewardSettings(FollowerSettings):
    """Start-up settings. With `weights_dir`, rewards come from the policy that is being trained."""

    weights_dir: WeightsLocation | None = None
    #: Hugging Face folder, or weights folder, of the model that baselines come from where a request asks for
    #: `baseline: fixed`: RLPR's initial policy. It never changes, and needs the vocabulary of `model`.
    base_model: Path | None = None
    #: Which version of the weights folder `base_model`; the latest at start-up when absent.
    base_version: Annotated[int, Field(ge=0)] | None = None
    #: Baselines remembered, about 200 bytes each. 0 computes them anew for every batch, to the same values.
    baseline_cache: Annotated[int, Field(ge=0)] = 100_000
    #: What `template: custom` means where a request does not say.
    custom_template: CustomTemplate | None = None

    @model_validator(mode="after")
    def _version_of_a_base(self) -> Self:
        if self.base_version is not None and self.base_model is None:
            raise ValueError("base_version needs base_model, the weights folder that holds it")
        return self


class ReferenceRewardOptions(ScorerOptions):
    """Per-request options. RLPR: mean, rlpr, debias. VeriFree: product, verifree."""

    #: How the token probabilities become one number; product and mean_logprob are sums in log space.
    aggregation: Aggregation = "mean"
    #: What is put in place of the response's answer, and which tokens count; see docs/reference_rewards.md.
    template: Literal["rlpr", "verifree", "custom"] = "rlpr"
    #: What `template: custom` means; the service's setting when absent.
    custom_template: CustomTemplate | None = None
    #: Divides the logits; the sampling temperature, in both papers.
    temperature: Temperature = 1.0
    #: What several references are worth together: any of them is right (max), or their mean.
    references: Literal["max", "mean"] = "max"
    #: Subtract the score of the same reference without any reasoning.
    debias: bool = False
    #: Whose that score is: that of the weights that score the response, or that of the service's `base_model`.
    baseline: Literal["refreshed", "fixed"] = "refreshed"
    #: What becomes of the score less the baseline. Absent: clip where `debias`, nothing otherwise.
    shaping: Shaping | None = None
    #: A response has a place for an answer only with exactly one <think> and one </think>.
    require_think: bool = False
    #: What `token_rewards` hold for the tokens of the reference that `verdict.extracted` names.
    token_rewards: Literal["logprobs", "probabilities", "none"] = "logprobs"

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.aggregation == "mean_logprob" and (self.debias or self.shaping is not None):
            raise ValueError("debias and shaping need an aggregation that is a probability, not mean_logprob")
        if self.baseline == "fixed" and not self.debias:
            raise ValueError("baseline: fixed says whose score debias subtracts; it needs debias: true")
        if self.custom_template is not None and self.template != "custom":
            raise ValueError("custom_template needs template: custom")
        return self
