"""What both model scorers share on top of `guerdon.logprobs`: batches that are halved when memory is short."""

from guerdon.logprobs import ScoredSequence, batch_logprobs, check_head, token_batches
from guerdon_services.scoring.engine import token_logprobs
from guerdon_services.scoring.memory import halve_when_out_of_memory, is_out_of_memory
from guerdon_services.scoring.temperature import Temperature

__all__ = [
    "ScoredSequence",
    "Temperature",
    "batch_logprobs",
    "check_head",
    "halve_when_out_of_memory",
    "is_out_of_memory",
    "token_batches",
    "token_logprobs",
]
