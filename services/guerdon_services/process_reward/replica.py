"""A scoring replica: follows the versions that a process reward learner publishes, and never learns.

Start as many as scoring needs. All items of a request are scored by one version (`Batching.whole_requests`).
"""

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from guerdon.types import Result, VersionsResponse
from guerdon_services import models
from guerdon_services.process_reward.references import FollowedPolicy, Frozen, Reference
from guerdon_services.process_reward.rewards import Rewards, Versions, log_ratios
from guerdon_services.process_reward.settings import ProcessRewardOptions, ReplicaSettings
from guerdon_services.process_reward.store import published_beta
from guerdon_services.runtime.scorer import RELEASE, Batching, ScoreJob, Scorer, Versioned
from guerdon_services.scoring import ScoredSequence

#: Until the learner has published anything.
_BETA = 0.05


class ProcessRewardReplica(Scorer[ReplicaSettings, ProcessRewardOptions], Versioned):
    """The scores of `process_reward`, by the newest version that was published."""

    name: ClassVar[str] = "process_reward_replica"
    version: ClassVar[str] = RELEASE
    settings_type = ReplicaSettings
    options_type = ProcessRewardOptions

    def __init__(self, settings: ReplicaSettings) -> None:
        super().__init__(settings)
        self.batching = Batching(
            max_items=64, max_tokens=settings.max_tokens, concurrency=1, whole_requests=True
        )
        self.version_wait_s = settings.version_wait_s

    def open(self) -> None:
        """Load the reference, and the newest version there is."""
        settings = self.settings
        models.set_threads(settings.threads)
        self._followed = models.FollowedModel(settings.model, settings.weights_dir, device=settings.device)
        prm = self._followed.language_model
        self._rewards = Rewards(prm, beta=settings.beta or _BETA, chat_template=settings.chat_template)
        self._take_up_beta()
        self._reference: Reference
        if settings.policy_weights_dir is None:
            self._reference = Frozen(models.load(settings.model, device=settings.device).model)
        else:
            self._reference = FollowedPolicy(
                prm, settings.model, settings.policy_weights_dir, device=settings.device
            )

    def close(self) -> None:
        """Download no more."""
        self._followed.close()
        self._reference.close()

    @property
    def model_version(self) -> int | None:
        """The version of the weights that answer now."""
        return self._followed.version

    def versions(self) -> VersionsResponse:
        """The version that answers now, and those in the folder that is followed."""
        return self._followed.versions()

    def refresh(self) -> None:
        """Take up the newest version, and the policy's where that is the reference."""
        if self._followed.refresh():
            self._take_up_beta()
        self._reference.refresh()

    def _take_up_beta(self) -> None:
        """Scale rewards as the learner does, unless told otherwise."""
        published = published_beta(self._followed.path)
        if self.settings.beta is None and published is not None:
            self._rewards.default_beta = published

    def details(self) -> dict[str, str]:
        """Whom it follows."""
        settings = self.settings
        return {
            "model": str(settings.model),
            "weights_dir": str(settings.weights_dir),
            "beta": str(self._rewards.default_beta),
            "reference": settings.reference,
        }

    def tokens(self, job: ScoreJob[ProcessRewardOptions]) -> int:
        """Prompt and response tokens; estimated where only text is given."""
        return models.approximate_tokens(job.sample)

    def score(self, batch: Sequence[ScoreJob[ProcessRewardOptions]]) -> list[Result]:
        """One result per job; samples at fault are `invalid_input`, their neighbours unharmed."""

        def ratios_of(sequences: Sequence[ScoredSequence], temperature: float) -> list[Tensor]:
            with self._reference.module() as reference:
                return log_ratios(
                    self._followed.model,
                    reference,
                    sequences,
                    temperature=temperature,
                    max_tokens=self.settings.max_tokens,
                )

        versions = Versions(self._followed.version, self._reference.version)
        return self._rewards.score(batch, ratios_of, versions)
