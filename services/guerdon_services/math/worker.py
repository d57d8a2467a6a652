"""One worker process of the math service: compares an answer with a reference.

Request: {"answer": str, "reference": str}. Reply: {"equal": bool, "method": str, "reason": str}, or {"unreadable":
str} when the reference is at fault.
"""

from guerdon_services.math.decision import UnreadableReference
from guerdon_services.workers import Handler, Message, serve


def prepare() -> Handler:
    """Import the algebra and warm it up."""
    from guerdon_services.math.algebra import equal, warm_up

    def compare(request: Message) -> Message:
        try:
            decision = equal(request["answer"], request["reference"])
        except UnreadableReference as problem:
            return {"unreadable": str(problem)}
        return {"equal": decision.equal, "method": decision.method, "reason": decision.reason}

    warm_up()
    return compare


if __name__ == "__main__":
    serve(prepare)
