"""From samples to sequences and from log-ratios to results: all that scoring needs, and nothing that learns.

The learner and every replica that follows it make their results here. Shape suffix: T response tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from guerdon.functional import implicit_rewards, normalise_returns
from guerdon.types import Result, Sample, Status, failed
from guerdon_services import models
from guerdon_services.process_reward.settings import ProcessRewardOptions
from guerdon_services.process_reward.steps import step_ends
from guerdon_services.runtime.scorer import ScoreJob, Unscorable
from guerdon_services.scoring import ScoredSequence, check_head, token_logprobs

Order = Literal["before", "after", "none"]

#: Log-ratios (nats, shape (T,)) of sequences at a temperature.
LogRatios = Callable[[Sequence[ScoredSequence], float], list[Tensor]]


@dataclass(frozen=True)
class Versions:
    """The weights that a batch is scored with."""

    model: int
    reference: int


def log_ratios(
    policy: nn.Module,
    reference: nn.Module | Sequence[Tensor],
    sequences: Sequence[ScoredSequence],
    *,
    temperature: float,
    max_tokens: int,
) -> list[Tensor]:
    """q_t = log pi_prm(y_t) - log pi_ref(y_t) of every response in nats, each of shape (T,); no gradients.

    `reference` is the model, or its log-probs where they are known.
    """
    if isinstance(reference, nn.Module):
        reference = token_logprobs(reference, sequences, temperature=temperature, max_tokens=max_tokens)
    logps = token_logprobs(policy, sequences, temperature=temperature, max_tokens=max_tokens)
    return [implicit_rewards(prm_T, ref_T, beta=1.0) for prm_T, ref_T in zip(logps, reference, strict=True)]


class Rewards:
    """Prepares samples for one model's tokenizer and makes their results; holds no weights of its own.

    Raises:
        ValueError: log-probs of such a model would be wrong (`scoring.check_head`).
    """

    def __init__(
        self, language_model: models.LanguageModel, *, beta: float, chat_template: str | None
    ) -> None:
        check_head(language_model.model)
        self._language_model = language_model
        #: Where a request gives none.
        self.default_beta = beta
        self._chat_template = chat_template

    def beta(self, options: ProcessRewardOptions) -> float:
        """The scale of rewards that a request asks for, or that of the settings."""
        return self.default_beta if options.beta is None else options.beta

    def score(
        self, batch: Sequence[ScoreJob[ProcessRewardOptions]], ratios_of: LogRatios, versions: Versions
    ) -> list[Result]:
        """One result per job; samples at fault are `invalid_input`, their neighbours unharmed.

        `versions` are those that `ratios_of` works with: all of the batch is scored by them.
        """
        sequences: dict[int, ScoredSequence] = {}
        results: dict[int, Result] = {}
        for index, job in enumerate(batch):
            prepared = self._admit(job, versions.model)
            if isinstance(prepared, Result):
                results[index] = prepared
            else:
                sequences[index] = prepared
        for temperature in {batch[index].options.temperature for index in sequences}:
            indices = [i for i in sequences if batch[i].options.temperature == temperature]
            ratios = ratios_of([sequences[i] for i in indices], temperature)
            for i, ratios_T in zip(indices, ratios, strict=True):
                options = batch[i].options
                rewards_T = self.token_rewards([sequences[i]], [ratios_T], options)[0]
                results[i] = result(batch[i].sample, sequences[i], rewards_T, options, "none", versions)
        return [results[index] for index in range(len(batch))]

    def _admit(self, job: ScoreJob[ProcessRewardOptions], version: int) -> ScoredSequence | Result:
        if job.min_version is not None and job.min_version > version:
            reason = f"version {job.min_version} does not exist yet, the current one is {version}"
            return failed(Status.UNAVAILABLE, reason, id=job.sample.id)
        if job.options.norm == "batch":
            reason = "options.norm: batch is defined for updates only, whose samples are one batch"
            return failed(Status.INVALID_INPUT, reason, id=job.sample.id)
        return self.prepare(job.sample, labelled=False)

    def prepare(self, sample: Sample, *, labelled: bool) -> ScoredSequence | Result:
        """The ids to score, or the result of a sample at fault; a `labelled` one needs an outcome."""
        try:
            return self._encode(sample, labelled=labelled)
        except Unscorable as error:
            return failed(Status.INVALID_INPUT, str(error), id=sample.id)

    def _encode(self, sample: Sample, *, labelled: bool) -> ScoredSequence:
        if labelled and sample.outcome is None:
            raise Unscorable("outcome: missing; an update learns from it")
        model = self._language_model
        prompt = models.encode_prompt(
            model.tokenizer,
            sample.prompt,
            sample.prompt_token_ids,
            chat_template=self._chat_template,
            context=model.context_length,
        )
        response = models.encode_response(model.tokenizer, sample, context=model.context_length)
        models.check_ids(model, "prompt_token_ids", prompt)
        models.check_ids(model, "response_token_ids", response)
        models.check_length(model, "response", len(prompt), len(response))
        return ScoredSequence(prompt, response)

    def token_rewards(
        self, sequences: Sequence[ScoredSequence], ratios: Sequence[Tensor], options: ProcessRewardOptions
    ) -> list[Tensor]:
        """Token rewards of the given responses, which are one batch for `norm`; fp64, so that sums stay exact."""
        rewards = [(self.beta(options) * ratios_T).double() for ratios_T in ratios]
        if options.granularity != "token":
            rewards = [
                _summed_at(self._ends(sequence, options), rewards_T)
                for sequence, rewards_T in zip(sequences, rewards, strict=True)
            ]
        if options.norm == "batch":
            rewards_BT = pad_sequence(rewards, batch_first=True)
            mask_BT = pad_sequence([torch.ones_like(row) for row in rewards], batch_first=True)
            normalised_BT = normalise_returns(rewards_BT, mask_BT)
            rewards = [row[: len(old)] for row, old in zip(normalised_BT, rewards, strict=True)]
        return rewards

    def _ends(self, sequence: ScoredSequence, options: ProcessRewardOptions) -> list[int]:
        ids = sequence.response_ids
        if options.granularity == "response":
            return [len(ids) - 1] if ids else []
        return step_ends(self._language_model.tokenizer, ids, options.step_separator)


def result(
    sample: Sample,
    sequence: ScoredSequence,
    rewards_T: Tensor,
    options: ProcessRewardOptions,
    order: Order,
    versions: Versions,
) -> Result:
    """What a sample gets for its token rewards (fp64); `value` is their sum."""
    empty = not sequence.response_ids
    return Result(
        id=sample.id,
        status=Status.OK,
        value=float(rewards_T.sum()),
        reason="the response is empty: no token to reward" if empty else "",
        token_rewards=rewards_T.float().tolist(),
        token_ids=list(sequence.response_ids),
        model_version=versions.model,
        reference_version=versions.reference,
        temperature=options.temperature,
        update_order=order,
    )


def _summed_at(ends: Sequence[int], rewards_T: Tensor) -> Tensor:
    """The sum of every stretch of tokens on its last one, 0 elsewhere."""
    placed_T = torch.zeros_like(rewards_T)
    start = 0
    for end in ends:
        placed_T[end] = rewards_T[start : end + 1].sum()
        start = end + 1
    return placed_T
