"""One worker process of the math service: compares an answer with a reference where balls are needed.

Request: {"answer": str, "reference": str}. Reply: the fields of a Decision, or {"unreadable": str} when the reference
is at fault.
"""

from dataclasses import asdict

from guerdon_services.math.arithmetic.values import Values
from guerdon_services.math.decide import decide
from guerdon_services.math.decision import UnreadableReference
from guerdon_services.workers import Handler, Message, serve

#: Steps of one comparison, of about a microsecond each.
_STEPS = 500_000


def compare(request: Message) -> Message:
    """Answer one request."""
    try:
        return asdict(decide(request["answer"], request["reference"], Values(balls=True, steps=_STEPS)))
    except UnreadableReference as problem:
        return {"unreadable": str(problem)}


def prepare() -> Handler:
    """Import the ball arithmetic with a first comparison, which no answer then waits for."""
    compare({"answer": "\\sin^2 x", "reference": "1-\\cos^2 x"})
    return compare


if __name__ == "__main__":
    serve(prepare)
