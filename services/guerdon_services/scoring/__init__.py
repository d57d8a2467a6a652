"""The engine below both model scorers: log-probs of given tokens under a causal model.

engine      sequences -> log-probs; the only module that services call
packing     one row in which a shared prefix stands once
attention   how such a row attends
padding     the plain batch, for models that cannot be packed
support     which of the two a model gets, and whether it can be scored at all, by trying
head        hidden states -> log-probs of the targets, without full logits
memory      smaller batches when memory is short
"""

from guerdon_services.scoring.engine import batch_logprobs, token_batches, token_logprobs
from guerdon_services.scoring.memory import halve_when_out_of_memory, is_out_of_memory
from guerdon_services.scoring.sequences import ScoredSequence, Temperature
from guerdon_services.scoring.support import check_head

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
