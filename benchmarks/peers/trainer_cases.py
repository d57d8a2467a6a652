"""What one training step learns from: prompts, completions and rewards, the same for every side."""

import random
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Data:
    """A prompt with its completions, per group; and their rewards."""

    groups: list[tuple[list[int], list[list[int]]]]
    rewards: list[list[float]]


@dataclass(frozen=True)
class Case:
    """Groups of completions; their lengths run from `shortest` to `longest` tokens."""

    prompts: int = 2
    group_size: int = 8
    prompt_tokens: int = 128
    shortest: int = 96
    longest: int = 96
    #: Report how far the policy has moved from the initial one, which takes a forward of that.
    initial_kl: bool = False
    #: Sample as many tokens before the step, and hand the weights over after it.
    generate: bool = False

    def data(self, tokenizer: PreTrainedTokenizerBase) -> Data:
        """Random words: the arithmetic does not depend on what they say. Whole words keep their tokens as text."""
        numbers = random.Random(0)
        words = sorted(
            number
            for token, number in tokenizer.get_vocab().items()
            if token[0] == "Ġ" and token[1:].isascii() and token[1:].isalpha()
        )

        def ids(count: int) -> list[int]:
            return [numbers.choice(words) for _ in range(count)]

        step = (self.longest - self.shortest) / max(self.group_size - 1, 1)
        groups = [
            (ids(self.prompt_tokens), [ids(round(self.shortest + step * i)) for i in range(self.group_size)])
            for _ in range(self.prompts)
        ]
        rewards = [[float(numbers.random() < 0.4) for _ in range(self.group_size)] for _ in groups]
        for row in rewards:
            row[0], row[-1] = 1.0, 0.0  # no group without a difference
        return Data(groups, rewards)


CASES = {
    "16 x 96": Case(),
    "ragged, 24 to 96": Case(shortest=24),
    "prompts of 32": Case(prompts=4, group_size=4, prompt_tokens=32),
    "KL to the initial policy": Case(initial_kl=True),
    "with generation": Case(generate=True),
}
