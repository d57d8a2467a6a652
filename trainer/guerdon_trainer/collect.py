"""Fills a batch: which prompts are asked, how far ahead, and which groups are worth training on."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from guerdon_trainer.config import RunConfig
from guerdon_trainer.groups import Ask, Group, RolloutError
from guerdon_trainer.live import LiveView
from guerdon_trainer.questions import PromptStream, sampling_seed
from guerdon_trainer.rollouts import Rollouts


@dataclass(frozen=True)
class Collected:
    """The groups of one step in the order of their prompts: those kept for the batch, and all that were seen.

    `dropped_stale` groups more were too old to be trained on. `policy_version` is the version that will be. The prompts
    of `pending` positions have been asked and not been trained on; `next_position` is the first that was not asked.
    """

    kept: list[Group]
    seen: list[Group]
    dropped_stale: int
    policy_version: int
    next_position: int
    pending: list[int]

    @property
    def ages(self) -> list[int]:
        """How many versions older than the trained policy the one is that sampled, for each group of the batch."""
        return [self.policy_version - group.policy_version for group in self.kept]


class Collector:
    """Asks prompts and gathers groups until a batch is full; what it asks ahead goes on while the batch is learned.

    With `rollout.ahead` 0 a batch consists of the first prompts whose groups pass the filter, whatever the order in
    which they finish: a resumed run meets the same batch again. Above 0 it consists of the groups that finish first;
    those too old by then are dropped, and their prompts asked again before new ones.
    """

    def __init__(
        self,
        rollouts: Rollouts,
        prompts: PromptStream,
        config: RunConfig,
        keep: Callable[[Group], bool],
        view: LiveView,
        *,
        position: int = 0,
        pending: Sequence[int] = (),
    ) -> None:
        self._rollouts = rollouts
        self._prompts = prompts
        self._config = config
        self._keep = keep
        self._view = view
        self._opened = rollouts.opened()
        self._position = position
        self._again = deque(pending)

    def collect(self, *, step: int, policy_version: int) -> Collected:
        """The groups that train `policy_version` in `step`.

        Fewer than a batch come when the refill budget is spent and the recipe says `when_spent: train`; none when
        the filter rejects every group, although their rewards are there and responses came to their end.

        Raises:
            RolloutError: the refill budget is spent.
            FailureBudgetExceeded: too many responses got no reward.
        """
        rollout = self._config.rollout
        wanted = rollout.prompts_per_step
        most = int(rollout.refill_budget * wanted)
        # Nothing is asked for steps that will not come.
        ahead = max(0, min(rollout.ahead, self._config.training.steps - step))
        kept: list[Group] = []
        seen: list[Group] = []
        dropped = 0
        while len(kept) < wanted and len(seen) < most:
            missing = min(wanted - len(kept), most - len(seen))
            self._ask(missing + ahead * wanted, step, policy_version)
            group = self._opened.take(missing)
            if policy_version - group.policy_version > rollout.max_policy_age:
                dropped += 1
                self._again.append(group.position)
                continue
            seen.append(group)
            if self._keep(group):
                kept.append(group)
            self._view.progress(
                f"step {step}: {len(kept)} of {wanted} groups, {len(seen) - len(kept)} filtered out"
            )
        if len(kept) < wanted:
            self._accept_partial(kept, seen)
        pending = [*self._again, *self._opened.positions]
        return Collected(_in_order(kept), _in_order(seen), dropped, policy_version, self._position, pending)

    def _ask(self, most: int, step: int, policy_version: int) -> None:
        """Ask prompts until `most` groups are open, within the recipe's limit."""
        rollout = self._config.rollout
        while len(self._opened) < min(most, rollout.groups_in_flight):
            position = self._next()
            question = self._prompts.at(position)
            sampling = rollout.sampling(sampling_seed(self._config.seed, step, question.id, position))
            oldest = max(0, policy_version - rollout.max_policy_age)
            self._opened.ask(Ask(position, question, sampling, oldest))

    def _next(self) -> int:
        if self._again:
            return self._again.popleft()
        self._position += 1
        return self._position - 1

    def _accept_partial(self, kept: list[Group], seen: list[Group]) -> None:
        """The refill budget is spent before the batch is full."""
        rollout = self._config.rollout
        if rollout.when_spent == "train" and (kept or _nothing_left(seen)):
            return
        raise RolloutError(
            f"only {len(kept)} of {len(seen)} groups passed the filter, and the batch needs "
            f"{rollout.prompts_per_step}: rollout.refill_budget ({rollout.refill_budget:g} times the batch) is spent. "
            f"{self._rollouts.explanation()}"
        )


def _nothing_left(seen: list[Group]) -> bool:
    """Whether groups that no filter passed have nothing to teach: all were judged, and not all were cut off."""
    responses = [response for group in seen for response in group.responses]
    judged = all(group.responses for group in seen) and all(one.reward is not None for one in responses)
    return judged and not all(one.truncated for one in responses)


def _in_order(groups: list[Group]) -> list[Group]:
    return sorted(groups, key=lambda group: group.position)
