"""Hands the policy's weights to the services that follow them."""

from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from guerdon import weights


def publish_policy(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path, version: int
) -> weights.Published:
    """Write the policy as a Hugging Face folder and make it the version to serve."""

    def write(path: Path) -> None:
        model.save_pretrained(path)
        tokenizer.save_pretrained(path)

    return weights.publish(folder, version, write)
