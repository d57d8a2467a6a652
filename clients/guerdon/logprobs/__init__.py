"""Log-probs of given tokens under a causal model, for whoever scores or trains; the extra guerdon[models].

engine      sequences -> log-probs; what callers use
packing     one row in which a shared prefix stands once
attention   how such a row attends
padding     the plain batch, for models that cannot be packed
support     which of the two a model gets, and whether it can be scored at all, by trying
head        hidden states -> log-probs and entropies, without full logits
"""

from guerdon.logprobs.attention import same_attention
from guerdon.logprobs.engine import batch_logprobs, flat_logprobs, token_batches
from guerdon.logprobs.packing import packed_size
from guerdon.logprobs.sequences import ScoredSequence
from guerdon.logprobs.support import check_head, packs

__all__ = [
    "ScoredSequence",
    "batch_logprobs",
    "check_head",
    "flat_logprobs",
    "packed_size",
    "packs",
    "same_attention",
    "token_batches",
]
