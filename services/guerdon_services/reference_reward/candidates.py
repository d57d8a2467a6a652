"""From a sample to the token sequences that have to be scored for it."""

from collections.abc import Sequence
from dataclasses import dataclass

from guerdon.types import Sample
from guerdon_services import models
from guerdon_services.models import LanguageModel
from guerdon_services.reference_reward import splice
from guerdon_services.reference_reward.settings import (
    CustomTemplate,
    ReferenceRewardOptions,
    ReferenceRewardSettings,
)
from guerdon_services.reference_reward.splice import NoAnswer, Splice, Tokenised
from guerdon_services.runtime.scorer import Unscorable
from guerdon_services.scoring import ScoredSequence


@dataclass(frozen=True)
class Place:
    """Where a reference stands in the response that is scored for it."""

    text: Splice
    tokens: Tokenised
    sequence: ScoredSequence


@dataclass(frozen=True)
class Candidate:
    """One reference of a sample, ready to be scored; `place` is None where the response has none for an answer."""

    reference: str
    place: Place | None
    baseline: ScoredSequence | None


@dataclass(frozen=True)
class Prepared:
    """The references of a sample, and why the response has no place for them where it has none."""

    candidates: tuple[Candidate, ...]
    no_answer: str = ""


@dataclass(frozen=True)
class Preparer:
    """Turns samples into candidates, for one model and its tokenizer."""

    model: LanguageModel
    settings: ReferenceRewardSettings

    def prepare(self, sample: Sample, options: ReferenceRewardOptions) -> Prepared:
        """One candidate per reference.

        Raises:
            Unscorable: a field of the sample is missing or wrong, or the template cannot be used.
        """
        _check_references(sample)
        self._check_template(sample, options)
        prompt, (response, sampled) = self._prompt(sample), self._response(sample)
        try:
            if options.require_think:
                splice.check_think_tags(response)
            texts = [self._splice(options, response, reference) for reference in sample.references]
            no_answer = ""
        except NoAnswer as error:
            texts, no_answer = [None] * len(sample.references), str(error)
        candidates = [
            Candidate(
                reference,
                None if text is None else self._place(prompt, text, sampled, index),
                self._baseline(prompt, options, reference, index) if options.debias else None,
            )
            for index, (reference, text) in enumerate(zip(sample.references, texts, strict=True))
        ]
        return Prepared(tuple(candidates), no_answer)

    def _prompt(self, sample: Sample) -> tuple[int, ...]:
        model = self.model
        prompt = models.encode_prompt(
            model.tokenizer,
            sample.prompt,
            sample.prompt_token_ids,
            chat_template=self.settings.chat_template,
            context=model.context_length,
        )
        models.check_ids(model, "prompt_token_ids", prompt)
        return tuple(prompt)

    def _response(self, sample: Sample) -> tuple[str, tuple[int, ...]]:
        """The response's text, and the sampled ids that stand for it where they are given."""
        model = self.model
        if sample.response_token_ids:
            models.check_ids(model, "response_token_ids", sample.response_token_ids)
            return splice.response_text(model.tokenizer, sample.response_token_ids)
        if sample.response is None:
            raise Unscorable("response: missing; give response or response_token_ids")
        models.check_characters(model.tokenizer, model.context_length, "response", len(sample.response))
        return sample.response, ()

    def _check_template(self, sample: Sample, options: ReferenceRewardOptions) -> None:
        context = self.model.context_length
        for index, reference in enumerate(sample.references):
            models.check_characters(self.model.tokenizer, context, f"references[{index}]", len(reference))
            if options.template == "custom":
                splice.check_boundary(self.model.tokenizer, self._custom(options), reference)

    def _custom(self, options: ReferenceRewardOptions) -> CustomTemplate:
        template = options.custom_template or self.settings.custom_template
        if template is None:
            raise Unscorable(
                "options.custom_template: missing; template: custom needs it there or in the service's settings"
            )
        return template

    def _splice(self, options: ReferenceRewardOptions, response: str, reference: str) -> Splice:
        match options.template:
            case "rlpr":
                return splice.rlpr(response, reference, end=str(self.model.tokenizer.eos_token or ""))
            case "verifree":
                return splice.verifree(response, reference)
            case "custom":
                return splice.custom(response, reference, self._custom(options))

    def _place(self, prompt: tuple[int, ...], text: Splice, sampled: tuple[int, ...], index: int) -> Place:
        tokens = splice.tokenise(self.model.tokenizer, text, sampled)
        return Place(text, tokens, self._sequence(prompt, tokens, index))

    def _baseline(
        self, prompt: tuple[int, ...], options: ReferenceRewardOptions, reference: str, index: int
    ) -> ScoredSequence:
        match options.template:
            case "rlpr":
                text = splice.rlpr_without_reasoning(reference)
            case "verifree":
                text = splice.verifree_without_reasoning(reference)
            case "custom":
                text = splice.custom_without_reasoning(reference, self._custom(options))
        return self._sequence(prompt, splice.tokenise(self.model.tokenizer, text), index)

    def _sequence(self, prompt: tuple[int, ...], tokens: Tokenised, index: int) -> ScoredSequence:
        """The scored tokens and all before them: what follows cannot change a causal model's mind."""
        if tokens.first == tokens.last:
            raise Unscorable(f"references[{index}]: the tokenizer makes no token of it")
        models.check_ids(self.model, f"references[{index}]", tokens.ids[: tokens.last])
        models.check_length(self.model, "response", len(prompt), tokens.last)
        return ScoredSequence(prompt + tokens.ids[: tokens.first], tokens.ids[tokens.first : tokens.last])


def sequences(candidates: Sequence[Candidate]) -> list[ScoredSequence]:
    """What the model that scores responses has to score, baselines aside."""
    return [candidate.place.sequence for candidate in candidates if candidate.place is not None]


def _check_references(sample: Sample) -> None:
    if not sample.references:
        raise Unscorable("references: missing; give at least one right answer")
    for index, reference in enumerate(sample.references):
        if not reference.strip():
            raise Unscorable(f"references[{index}]: blank")
