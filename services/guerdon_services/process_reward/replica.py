"""A scoring replica: follows the versions that a process reward learner publishes, and never learns.

Start as many as scoring needs.
"""

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from guerdon.types import Result
from guerdon_services import models
from guerdon_services.models import FollowingScorer
from guerdon_services.process_reward.references import FollowedPolicy, Frozen, Reference
from guerdon_services.process_reward.rewards import Rewards, Versions, log_ratios
from guerdon_services.process_reward.settings import ProcessRewardOptions, ReplicaSettings
from guerdon_services.process_reward.store import published_beta
from guerdon_services.runtime.scorer import RELEASE, ScoreJob
from guerdon_services.scoring import ScoredSequence

#: Until the learner has published anything.
_BETA = 0.05


class ProcessRewardReplica(FollowingScorer[ReplicaSettings, ProcessRewardOptions]):
    """The scores of `process_reward`, by the newest version that was published."""

    name: ClassVar[str] = "process_reward_replica"
    version: ClassVar[str] = RELEASE
    settings_type = ReplicaSettings
    options_type = ProcessRewardOptions

    def open(self) -> None:
        """Load the newest version there is, and the reference."""
        super().open()
        settings = self.settings
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
        super().close()
        self._reference.close()

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
