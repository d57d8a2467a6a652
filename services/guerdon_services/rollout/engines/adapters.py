"""LoRA adapters as peft writes them: whether a folder holds one, and whether it is whole and fits a model."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open

from guerdon.fingerprint import BASE, fingerprint
from guerdon_services.models import WeightsMismatch

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
#: Of peft's tensors: "base_model.model." + the module's name + which of its two matrices.
_TENSOR = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")


def check(folder: Path, base: Path, model: Mapping[str, tuple[int, ...]], max_rank: int) -> None:
    """See that an adapter is whole and made for the model in `base`, whose tensors have the shapes `model`.

    Every module's A is rank x inputs and its B outputs x rank.

    Raises:
        WeightsMismatch: it belongs to another model. SafetensorError: a file is torn. OSError: one is not there.
        ValueError: it is of another kind, or of a larger rank than `max_rank`.
    """
    settings = _settings(folder)
    named = folder / BASE
    if named.is_file() and named.read_text().strip() != fingerprint(base):
        raise WeightsMismatch(f"{folder} was trained on other weights than those in {base}")
    with safe_open(folder / TENSORS, framework="numpy") as handle:
        shapes = {name: tuple(handle.get_slice(name).get_shape()) for name in handle.keys()}  # noqa: SIM118
    if not shapes:
        raise WeightsMismatch(f"{folder / TENSORS} holds no tensor")
    modules: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, shape in shapes.items():
        match = _TENSOR.fullmatch(name)
        if match is None:
            raise WeightsMismatch(f"{folder / TENSORS}: {name!r} is no part of a LoRA adapter")
        modules.setdefault(match[1], {})[match[2]] = shape
    for module, found in modules.items():
        rank = found.get("A", (0,))[0]
        if rank > max_rank:
            raise ValueError(f"its rank is {rank}, and the service was started with max_lora_rank={max_rank}")
        if not settings.get("rank_pattern") and rank not in (0, settings["r"]):
            raise WeightsMismatch(f"{module}: rank {rank} where {CONFIG} says {settings['r']}")
        weight = model.get(f"{module}.weight", ())
        if len(weight) != 2 or found != {"A": (rank, weight[1]), "B": (weight[0], rank)}:
            raise WeightsMismatch(f"{folder}: the model has no {module!r} that {found} would fit")


def _settings(folder: Path) -> dict[str, Any]:
    settings = json.loads((folder / CONFIG).read_text())
    if not isinstance(settings, dict) or settings.get("peft_type") != "LORA":
        raise ValueError(f"{folder / CONFIG} does not describe a LoRA adapter")
    if not isinstance(settings.get("r"), int) or "lora_alpha" not in settings:
        raise ValueError(f"{folder / CONFIG} lacks r or lora_alpha")
    return settings
