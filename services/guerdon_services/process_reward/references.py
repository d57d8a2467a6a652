"""What the PRM is compared with: a frozen model, the policy's newest weights, or the PRM without its adapters."""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol

from torch import nn

from guerdon_services.models import FollowedModel, LanguageModel


class Reference(Protocol):
    """A model to compare with; its version changes in `refresh` only."""

    @property
    def version(self) -> int:
        """The version of its weights; 0 for ever where they are frozen."""
        ...

    def refresh(self) -> None:
        """Take up newer weights, if there are any."""
        ...

    def module(self) -> AbstractContextManager[nn.Module]:
        """The model, fit to run within the context."""
        ...

    def close(self) -> None:
        """Download no more."""
        ...


class Frozen:
    """A model that never changes."""

    version = 0

    def __init__(self, module: nn.Module) -> None:
        self._module = module.requires_grad_(False)

    def refresh(self) -> None:
        """There is nothing newer."""

    def module(self) -> AbstractContextManager[nn.Module]:
        """The model itself."""
        return nullcontext(self._module)

    def close(self) -> None:
        """There is nothing to give up."""


class FollowedPolicy:
    """The policy, as its trainer publishes it; until then the model that the PRM started from, version 0.

    Raises:
        ValueError: the policy's vocabulary is not the PRM's, so their log-probs cannot be compared.
    """

    def __init__(self, prm: LanguageModel, folder: Path, weights_dir: Path | str, *, device: str) -> None:
        self._followed = FollowedModel(folder, weights_dir, device=device)
        self._followed.model.requires_grad_(False)
        policy = self._followed.language_model
        if (policy.vocabulary_size, policy.tokenizer.get_vocab()) != (
            prm.vocabulary_size,
            prm.tokenizer.get_vocab(),
        ):
            raise ValueError(
                f"policy_weights_dir: the policy in {weights_dir} has another vocabulary than {folder}"
            )

    @property
    def version(self) -> int:
        """The version that was taken up last."""
        return self._followed.version

    def refresh(self) -> None:
        """Take up what the trainer published since."""
        self._followed.refresh()

    def module(self) -> AbstractContextManager[nn.Module]:
        """The policy's weights of `version`."""
        return nullcontext(self._followed.model)

    def close(self) -> None:
        """Download no more."""
        self._followed.close()
