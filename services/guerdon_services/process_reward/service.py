"""The process reward service: scores every response token by an implicit PRM and trains it online.

How it differs from PRIME's released code is listed in docs/papers/prime.md.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from guerdon.functional import pairwise_accuracy
from guerdon.types import (
    Result,
    Status,
    UpdateRequest,
    UpdateResponse,
    VersionsResponse,
)
from guerdon_services import models
from guerdon_services.process_reward.lora import Adapters
from guerdon_services.process_reward.prm import ImplicitPRM, Objective, Step
from guerdon_services.process_reward.references import FollowedPolicy, Frozen, Reference
from guerdon_services.process_reward.rewards import Rewards, Versions, result
from guerdon_services.process_reward.schedule import lr_factor
from guerdon_services.process_reward.settings import ProcessRewardOptions, ProcessRewardSettings
from guerdon_services.process_reward.store import VersionStore, digest, save_weights
from guerdon_services.runtime.problem import InvalidFields
from guerdon_services.runtime.scorer import RELEASE, Batching, Learner, NotReady, ScoreJob, Unscorable
from guerdon_services.runtime.validation import parse_options
from guerdon_services.scoring import ScoredSequence, is_out_of_memory

#: Log-ratios of fewer nats per token can be the rounding of two forwards.
_ROUNDING = 1e-5


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
        self.batching = Batching(
            max_items=64, max_tokens=settings.max_tokens, concurrency=1, whole_requests=True
        )

    def open(self) -> None:
        """Load reference and PRM; resume from the latest published version, or publish version 0."""
        settings = self.settings
        models.set_threads(settings.threads)
        torch.manual_seed(settings.seed)
        self._store = VersionStore(
            settings.weights_dir,
            keep_last=settings.keep_last,
            beta=settings.beta,
            mirror_url=settings.mirror_url,
        )
        self._trained = models.load(settings.model, device=settings.device)
        self._rewards = Rewards(self._trained, beta=settings.beta, chat_template=settings.chat_template)
        self._read, self._save = models.read_weights, save_weights
        self._reference = self._open_model()
        trained = [parameter for parameter in self._trained.model.parameters() if parameter.requires_grad]
        self._prm = ImplicitPRM(
            self._trained.model,
            self._reference,
            torch.optim.AdamW(trained, lr=settings.lr, weight_decay=settings.weight_decay),
            grad_clip=settings.grad_clip,
            max_tokens=settings.max_tokens,
        )
        if self._store.current is None:
            self._publish(0)
        self._restore()

    def _open_model(self) -> Reference:
        """Put adapters into the PRM where asked for; returns what it is compared with."""
        settings = self.settings
        adapters = None
        if settings.lora_rank:
            adapters = Adapters(
                self._trained.model,
                rank=settings.lora_rank,
                alpha=settings.lora_alpha,
                targets=settings.lora_targets,
            )
            self._read, self._save = adapters.read, adapters.save
        if settings.policy_weights_dir is not None:
            return FollowedPolicy(
                self._trained, settings.model, settings.policy_weights_dir, device=settings.device
            )
        return adapters or Frozen(models.load(settings.model, device=settings.device).model)

    def close(self) -> None:
        """Give up the weights folder, and follow the policy no more."""
        self._reference.close()
        self._store.close()

    @property
    def model_version(self) -> int | None:
        """The PRM's version: 0, and one more with every update."""
        return self._version

    def device_memory(self) -> dict[str, int]:
        """Of the device that learns."""
        return models.device_memory(self.settings.device)

    def details(self) -> dict[str, str]:
        """Where model and versions lie, and what it learns with."""
        settings = self.settings
        mirror = {"mirror": self._store.mirrored} if settings.mirror_url else {}
        return mirror | {
            "model": str(settings.model),
            "weights_dir": str(settings.weights_dir),
            "beta": str(settings.beta),
            "lr": f"{settings.lr} ({settings.lr_schedule})",
            "reference": settings.reference,
            "lora_rank": str(settings.lora_rank),
        }

    def tokens(self, job: ScoreJob[ProcessRewardOptions]) -> int:
        """Prompt and response tokens; estimated where only text is given."""
        return models.approximate_tokens(job.sample)

    def score(self, batch: Sequence[ScoreJob[ProcessRewardOptions]]) -> list[Result]:
        """One result per job; samples at fault are `invalid_input`, their neighbours unharmed."""
        self._ensure_published()

        def ratios_of(sequences: Sequence[ScoredSequence], temperature: float) -> list[Tensor]:
            return self._prm.log_ratios(sequences, temperature=temperature)

        return self._rewards.score(batch, ratios_of, Versions(self._version, self._reference.version))

    def refresh(self) -> None:
        """Take up the policy's newest weights, where it is the reference."""
        self._ensure_published()
        self._reference.refresh()

    def update(self, request: UpdateRequest) -> UpdateResponse:
        """One optimizer step on the samples' outcomes; see `guerdon.types.UpdateRequest`.

        An id that was applied before gets the stored answer again; `base_version` returns to a kept version.
        """
        self._ensure_published()
        repeated = self._repeated(request)
        if repeated is not None:
            return repeated
        try:
            options = parse_options(ProcessRewardOptions, request.options)
            prepared = [self._rewards.prepare(sample, labelled=True) for sample in request.samples]
            labelled = _labelled(request, prepared)
            self._check_kept(request.base_version)
        except (InvalidFields, Unscorable) as error:
            return self._refused(request, str(error))
        try:
            self._start_from(request.base_version)
            self.refresh()
            return self._apply(request, options, prepared, labelled)
        except Exception as error:
            self._published = False  # what was published is the truth, also after a step that was not
            with suppress(NotReady):
                self._ensure_published()
            if is_out_of_memory(error):
                raise NotReady("not enough memory for an update of this size") from error
            raise

    def versions(self) -> VersionsResponse:
        """The current version and the kept ones."""
        return VersionsResponse(
            current=self._version, versions=models.kept_versions(self.settings.weights_dir)
        )

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
            Objective(self._rewards.beta(options), options.temperature, options.loss, options.pair_weights),
            groups=[item.group for item in labelled],
            lr=self._lr(before),
        )
        after = before + 1
        ratios = step.log_ratios
        if request.order == "before":
            ratios = self._prm.log_ratios(
                [item.sequence for item in labelled],
                temperature=options.temperature,
                references=step.references,
            )
        scored_by = after if request.order == "before" else before
        versions = Versions(scored_by, self._reference.version)
        response = UpdateResponse(
            request_id=request.request_id,
            status=Status.OK,
            results=self._results(request, options, prepared, labelled, ratios, versions),
            version_before=before,
            version_after=after,
            metrics=self._metrics(step, labelled, options) | {"lr": self._lr(before)},
        )
        self._publish(after, (request, response))
        self._version = after  # not before it is durable: whoever waits for a version may rely on it
        return response

    def _lr(self, version: int) -> float:
        """The learning rate of the update of `version`."""
        settings = self.settings
        return settings.lr * lr_factor(
            version,
            settings.lr_schedule,
            warmup=settings.warmup_updates,
            total=settings.schedule_updates or 0,
            floor=settings.lr_floor,
        )

    def _results(
        self,
        request: UpdateRequest,
        options: ProcessRewardOptions,
        prepared: Sequence[ScoredSequence | Result],
        labelled: Sequence[_Labelled],
        ratios: Sequence[Tensor],
        versions: Versions,
    ) -> list[Result]:
        rewards_of = self._rewards.token_rewards([item.sequence for item in labelled], ratios, options)
        rewards = {item.index: rewards_T for item, rewards_T in zip(labelled, rewards_of, strict=True)}
        return [
            sequence
            if isinstance(sequence, Result)
            else result(
                sample, sequence, rewards.get(index, torch.empty(0)), options, request.order, versions
            )
            for index, (sample, sequence) in enumerate(zip(request.samples, prepared, strict=True))
        ]

    def _metrics(
        self, step: Step, labelled: Sequence[_Labelled], options: ProcessRewardOptions
    ) -> dict[str, float]:
        sums_B = torch.stack([ratios_T.sum() for ratios_T in step.log_ratios])
        lengths_B = torch.tensor([len(ratios_T) for ratios_T in step.log_ratios])
        # Rounding, as everywhere in version 0, is no opinion: half right.
        sums_B = torch.where(sums_B.abs() <= _ROUNDING * lengths_B, 0, sums_B)
        logits_B = self._rewards.beta(options) * sums_B
        outcomes_B = torch.tensor([item.outcome for item in labelled])
        right_B = torch.where(logits_B == 0, 0.5, ((logits_B > 0) == (outcomes_B > 0.5)).float())
        return {
            "loss": step.loss,
            "accuracy": float(right_B.mean()),
            "pairwise_accuracy": pairwise_accuracy(logits_B, outcomes_B, [item.group for item in labelled]),
            "grad_norm": step.grad_norm,
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

    def _check_kept(self, version: int | None) -> None:
        if version is None or version == self._version:
            return
        kept = [published.version for published in self._store.kept()]
        if version not in kept:
            raise Unscorable(f"base_version: {version} is not kept; kept are {kept}")

    def _start_from(self, version: int | None) -> None:
        """Return to the version an update asks for, if it is not the current one."""
        if version is None or version == self._version:
            return
        self._store.go_back(version)
        self._restore()

    def _publish(self, version: int, update: tuple[UpdateRequest, UpdateResponse] | None = None) -> None:
        trained = self._trained
        self._store.publish(
            version, trained.model, trained.tokenizer, self._prm.optimizer, update, save=self._save
        )

    def _ensure_published(self) -> None:
        """Read the weights back where those in memory may be of no version; such weights must not answer.

        Raises:
            NotReady: they cannot be read.
        """
        if self._published:
            return
        try:
            self._restore()
        except Exception as error:
            raise NotReady(
                f"the weights cannot be read back from {self.settings.weights_dir}: {error}"
            ) from error

    def _restore(self) -> None:
        self._published = False
        self._version = self._store.restore(self._trained.model, self._prm.optimizer, self._read)
        self._published = True


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
