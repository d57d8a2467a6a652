"""The process reward service: scores every response token by an implicit PRM and trains it online.

How it differs from PRIME's released code is listed in docs/papers/prime.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import ValidationError
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from guerdon.functional import normalise_returns, pairwise_accuracy
from guerdon.types import (
    ModelVersion,
    Result,
    Sample,
    Status,
    UpdateRequest,
    UpdateResponse,
    VersionsResponse,
    failed,
)
from guerdon_services import models
from guerdon_services.process_reward.prm import ImplicitPRM, Step
from guerdon_services.process_reward.settings import ProcessRewardOptions, ProcessRewardSettings
from guerdon_services.process_reward.store import VersionStore, digest
from guerdon_services.runtime.scorer import RELEASE, Batching, Learner, ScoreJob, Unscorable
from guerdon_services.scoring import ScoredSequence

Order = Literal["before", "after", "none"]
#: The frozen reference is the model the PRM started from.
_REFERENCE_VERSION = 0


@dataclass(frozen=True)
class _Labelled:
    """A sample that can be learnt from."""

    index: int
    sequence: ScoredSequence
    outcome: float
    group: object


class ProcessRewardScorer(Learner[ProcessRewardSettings, ProcessRewardOptions]):
    """r_t = beta * (log pi_prm(y_t) - log pi_ref(y_t)); `value` is their sum over the response."""

    name: ClassVar[str] = "process_reward"
    version: ClassVar[str] = RELEASE
    settings_type = ProcessRewardSettings
    options_type = ProcessRewardOptions

    def __init__(self, settings: ProcessRewardSettings) -> None:
        super().__init__(settings)
        self.batching = Batching(max_items=64, max_tokens=settings.max_tokens, concurrency=1)

    def open(self) -> None:
        """Load reference and PRM; resume from the latest published version, or publish version 0."""
        settings = self.settings
        models.set_threads(settings.threads)
        torch.manual_seed(settings.seed)
        self._store = VersionStore(settings.weights_dir, keep_last=settings.keep_last)
        self._trained = models.load(settings.model, device=settings.device)
        reference = models.load(settings.model, device=settings.device)
        optimizer = torch.optim.AdamW(
            self._trained.model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay
        )
        self._prm = ImplicitPRM(
            self._trained.model,
            reference.model,
            optimizer,
            grad_clip=settings.grad_clip,
            max_tokens=settings.max_tokens,
        )
        if self._store.current is None:
            self._store.publish(0, self._trained.model, self._trained.tokenizer, optimizer)
        self._version = self._store.restore(self._trained.model, optimizer)

    def close(self) -> None:
        """Give up the weights folder."""
        self._store.close()

    @property
    def model_version(self) -> int | None:
        """The PRM's version: 0, and one more with every update."""
        return self._version

    def details(self) -> dict[str, str]:
        """Where model and versions lie, and what it learns with."""
        settings = self.settings
        return {
            "model": str(settings.model),
            "weights_dir": str(settings.weights_dir),
            "beta": str(settings.beta),
            "lr": str(settings.lr),
            "reference": "frozen",
        }

    def tokens(self, job: ScoreJob[ProcessRewardOptions]) -> int:
        """Prompt and response tokens; estimated where only text is given."""
        return models.approximate_tokens(job.sample)

    def score(self, batch: Sequence[ScoreJob[ProcessRewardOptions]]) -> list[Result]:
        """One result per job; samples at fault are `invalid_input`, their neighbours unharmed."""
        sequences: dict[int, ScoredSequence] = {}
        results: dict[int, Result] = {}
        for index, job in enumerate(batch):
            prepared = self._admit(job)
            if isinstance(prepared, Result):
                results[index] = prepared
            else:
                sequences[index] = prepared
        for temperature in {batch[index].options.temperature for index in sequences}:
            indices = [i for i in sequences if batch[i].options.temperature == temperature]
            ratios = self._prm.log_ratios([sequences[i] for i in indices], temperature=temperature)
            for i, ratios_T in zip(indices, ratios, strict=True):
                rewards_T = self._rewards([ratios_T], batch[i].options)[0]
                results[i] = self._result(batch[i].sample, sequences[i], rewards_T, batch[i].options, "none")
        return [results[index] for index in range(len(batch))]

    def update(self, request: UpdateRequest) -> UpdateResponse:
        """One optimizer step on the samples' outcomes; see `guerdon.types.UpdateRequest`.

        An id that was applied before gets the stored answer again; `base_version` returns to a kept version.
        """
        repeated = self._repeated(request)
        if repeated is not None:
            return repeated
        try:
            options = ProcessRewardOptions.model_validate(request.options)
            prepared = [self._prepare(sample, labelled=True) for sample in request.samples]
            labelled = _labelled(request, prepared)
            self._start_from(request.base_version)
        except ValidationError as error:
            return self._refused(request, f"options.{_first(error)}")
        except Unscorable as error:
            return self._refused(request, str(error))
        try:
            return self._apply(request, options, prepared, labelled)
        except Exception:
            self._restore()  # what was published is the truth, also after a step that was not
            raise

    def versions(self) -> VersionsResponse:
        """The current version and the kept ones."""
        kept = [
            ModelVersion(version=kept.version, path=str(kept.path), created_unix_s=kept.path.stat().st_mtime)
            for kept in self._store.kept()
        ]
        return VersionsResponse(current=self._version, versions=kept)

    def _apply(
        self,
        request: UpdateRequest,
        options: ProcessRewardOptions,
        prepared: Sequence[ScoredSequence | Result],
        labelled: Sequence[_Labelled],
    ) -> UpdateResponse:
        before = self._version
        step = self._prm.step(
            [item.sequence for item in labelled],
            [item.outcome for item in labelled],
            beta=self._beta(options),
            temperature=options.temperature,
        )
        self._version = before + 1
        ratios = step.log_ratios
        if request.order == "before":
            ratios = self._prm.log_ratios(
                [item.sequence for item in labelled],
                temperature=options.temperature,
                references=step.references,
            )
        scored_by = self._version if request.order == "before" else before
        response = UpdateResponse(
            request_id=request.request_id,
            status=Status.OK,
            results=self._results(request, options, prepared, labelled, ratios, scored_by),
            version_before=before,
            version_after=self._version,
            metrics=self._metrics(step, labelled, options),
        )
        self._store.publish(
            self._version,
            self._trained.model,
            self._trained.tokenizer,
            self._prm.optimizer,
            (request, response),
        )
        return response

    def _results(
        self,
        request: UpdateRequest,
        options: ProcessRewardOptions,
        prepared: Sequence[ScoredSequence | Result],
        labelled: Sequence[_Labelled],
        ratios: Sequence[Tensor],
        version: int,
    ) -> list[Result]:
        rewards = {
            item.index: rewards_T
            for item, rewards_T in zip(labelled, self._rewards(ratios, options), strict=True)
        }
        return [
            sequence
            if isinstance(sequence, Result)
            else self._result(
                sample, sequence, rewards.get(index, torch.empty(0)), options, request.order, version
            )
            for index, (sample, sequence) in enumerate(zip(request.samples, prepared, strict=True))
        ]

    def _metrics(
        self, step: Step, labelled: Sequence[_Labelled], options: ProcessRewardOptions
    ) -> dict[str, float]:
        logits_B = self._beta(options) * torch.stack([ratios_T.sum() for ratios_T in step.log_ratios])
        outcomes_B = torch.tensor([item.outcome for item in labelled])
        # A logit of exactly 0, as everywhere in version 0, is no opinion: half right.
        right_B = torch.where(logits_B == 0, 0.5, ((logits_B > 0) == (outcomes_B > 0.5)).float())
        return {
            "loss": step.loss,
            "accuracy": float(right_B.mean()),
            "pairwise_accuracy": pairwise_accuracy(logits_B, outcomes_B, [item.group for item in labelled]),
            "grad_norm": step.grad_norm,
            "lr": self.settings.lr,
            "samples": float(len(labelled)),
            "tokens": float(sum(len(item.sequence.response_ids) for item in labelled)),
        }

    def _repeated(self, request: UpdateRequest) -> UpdateResponse | None:
        """The answer to an id that was applied before; None for a new one."""
        update = self._store.find(request.request_id)
        if update is None:
            return None
        if update.digest != digest(request):
            if request.base_version is not None and request.base_version < update.version:
                return None  # a trainer that went back: the update of the past it leaves is forgotten
            return self._refused(request, "request_id: it was given to an update with other contents")
        return self._store.response(update) or self._refused(
            request, f"request_id: applied as version {update.version}, whose answer is no longer kept"
        )

    def _refused(self, request: UpdateRequest, reason: str) -> UpdateResponse:
        return UpdateResponse(
            request_id=request.request_id,
            status=Status.INVALID_INPUT,
            reason=reason,
            version_before=self._version,
        )

    def _start_from(self, version: int | None) -> None:
        """Return to the version an update asks for, if it is not the current one."""
        if version is None or version == self._version:
            return
        kept = [published.version for published in self._store.kept()]
        if version not in kept:
            raise Unscorable(f"base_version: {version} is not kept; kept are {kept}")
        self._store.go_back(version)
        self._restore()

    def _restore(self) -> None:
        self._version = self._store.restore(self._trained.model, self._prm.optimizer)

    def _admit(self, job: ScoreJob[ProcessRewardOptions]) -> ScoredSequence | Result:
        if job.min_version is not None and job.min_version > self._version:
            reason = f"version {job.min_version} does not exist yet, the current one is {self._version}"
            return failed(Status.UNAVAILABLE, reason, id=job.sample.id)
        if job.options.norm == "batch":
            reason = "options.norm: batch is defined for updates only, whose samples are one batch"
            return failed(Status.INVALID_INPUT, reason, id=job.sample.id)
        return self._prepare(job.sample, labelled=False)

    def _prepare(self, sample: Sample, *, labelled: bool) -> ScoredSequence | Result:
        """The ids to score, or the result of a sample at fault."""
        try:
            return self._encode(sample, labelled=labelled)
        except Unscorable as error:
            return failed(Status.INVALID_INPUT, str(error), id=sample.id)

    def _encode(self, sample: Sample, *, labelled: bool) -> ScoredSequence:
        if labelled and sample.outcome is None:
            raise Unscorable("outcome: missing; an update learns from it")
        tokenizer, context = self._trained.tokenizer, self._trained.context_length
        prompt = models.encode_prompt(
            tokenizer,
            sample.prompt,
            sample.prompt_token_ids,
            chat_template=self.settings.chat_template,
            context=context,
        )
        response = models.encode_response(tokenizer, sample, context=context)
        models.check_ids(self._trained, "prompt_token_ids", prompt)
        models.check_ids(self._trained, "response_token_ids", response)
        models.check_length(self._trained, "response", len(prompt), len(response))
        return ScoredSequence(prompt, response)

    def _beta(self, options: ProcessRewardOptions) -> float:
        return self.settings.beta if options.beta is None else options.beta

    def _rewards(self, ratios: Sequence[Tensor], options: ProcessRewardOptions) -> list[Tensor]:
        """Token rewards of the given responses, which are one batch for `norm`."""
        rewards = [self._beta(options) * ratios_T for ratios_T in ratios]
        if options.granularity == "response":
            rewards = [_on_last_token(rewards_T) for rewards_T in rewards]
        if options.norm == "batch":
            rewards_BT = pad_sequence(rewards, batch_first=True)
            mask_BT = pad_sequence([torch.ones_like(row) for row in rewards], batch_first=True)
            normalised_BT = normalise_returns(rewards_BT, mask_BT)
            rewards = [row[: len(old)] for row, old in zip(normalised_BT, rewards, strict=True)]
        return rewards

    def _result(
        self,
        sample: Sample,
        sequence: ScoredSequence,
        rewards_T: Tensor,
        options: ProcessRewardOptions,
        order: Order,
        version: int | None = None,
    ) -> Result:
        empty = not sequence.response_ids
        return Result(
            id=sample.id,
            status=Status.OK,
            value=float(rewards_T.double().sum()),
            reason="the response is empty: no token to reward" if empty else "",
            token_rewards=rewards_T.tolist(),
            token_ids=list(sequence.response_ids),
            model_version=self._version if version is None else version,
            reference_version=_REFERENCE_VERSION,
            temperature=options.temperature,
            update_order=order,
        )


def _labelled(request: UpdateRequest, prepared: Sequence[ScoredSequence | Result]) -> list[_Labelled]:
    """The samples with an outcome and at least one response token.

    Raises:
        Unscorable: there is none.
    """
    labelled = [
        _Labelled(index, sequence, sample.outcome, sample.group or tuple(sequence.prompt_ids))
        for index, (sample, sequence) in enumerate(zip(request.samples, prepared, strict=True))
        if isinstance(sequence, ScoredSequence) and sequence.response_ids and sample.outcome is not None
    ]
    if not labelled:
        refusals = [result.reason for result in prepared if isinstance(result, Result)]
        why = refusals[0] if refusals else "every response is empty" if prepared else "there are none"
        raise Unscorable(f"samples: none of them can be learnt from ({why})")
    return labelled


def _on_last_token(rewards_T: Tensor) -> Tensor:
    placed_T = torch.zeros_like(rewards_T)
    if len(placed_T):
        placed_T[-1] = rewards_T.sum()
    return placed_T


def _first(error: ValidationError) -> str:
    detail = error.errors()[0]
    return f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}"
