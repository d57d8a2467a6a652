"""One worker process of the rule reasoning_gym: scores an answer with the scorer of a dataset.

Request: {"dataset": str, "entry": {...}, "answer": str}. Reply: {"value": number, "reason": str}, or {"invalid": str}
when the caller is at fault. A scorer that has called the entry's own answer right and cannot read another one says
that this one is wrong: 0. Any other exception is an error of the call.

Some scorers hand the answer to `eval` or to sympy's `parse_expr`, which evaluates too. In the modules of
reasoning-gym `eval` is replaced by one that computes with literals only, and an answer that would reach `parse_expr`
must be plain arithmetic first.
"""

# reasoning-gym has no type stubs.
# pyright: reportMissingTypeStubs=false

import ast
import copy
import json
import sys
from functools import lru_cache
from typing import Any, cast

from guerdon_services.workers import Handler, Message, serve

#: Datasets whose scorer parses the answer as an expression.
_EXPRESSIONS = frozenset(
    {"simple_integration", "intermediate_integration", "polynomial_multiplication", "puzzle24", "countdown"}
)
_FUNCTIONS = frozenset(
    {"sin", "cos", "tan", "exp", "log", "ln", "sqrt", "Abs", "asin", "acos", "atan", "sinh", "cosh"}
)
_NODES = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.USub, ast.UAdd,
    ast.Constant, ast.Name, ast.Load, ast.Call,
)  # fmt: skip
_LITERALS = (
    ast.Expression, ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.Load, ast.BinOp, ast.UnaryOp,
    ast.operator, ast.unaryop,
)  # fmt: skip
_MAX_EXPRESSION = 2000
#: What scorers raise over an answer that they cannot read, or cannot compute with.
_UNREADABLE = (ArithmeticError, AttributeError, LookupError, SyntaxError, TypeError, ValueError)


def evaluate(text: str, *_: object) -> Any:
    """`eval` without names: literals, lists and the operators between them.

    Raises:
        ValueError: the text holds anything else.
    """
    tree = ast.parse(text.strip(), mode="eval")
    if not all(isinstance(node, _LITERALS) for node in ast.walk(tree)):
        raise ValueError("only literals and operators can be evaluated")
    return eval(compile(tree, "answer", "eval"), {"__builtins__": {}})


def is_arithmetic(answer: str) -> bool:
    """Whether a text is an arithmetic expression of numbers, names and known functions, and nothing else."""
    if len(answer) > _MAX_EXPRESSION:
        return False
    try:
        tree = ast.parse(answer.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return all(_is_plain(node) for node in ast.walk(tree))


def _is_plain(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS and not node.keywords
    if isinstance(node, ast.Constant):
        return type(node.value) in (int, float)
    if isinstance(node, ast.Name):
        return len(node.id) == 1 or node.id in _FUNCTIONS or node.id == "pi"
    return isinstance(node, _NODES)


def _tuples(value: Any) -> Any:
    """The value with tuples for its lists."""
    if isinstance(value, list):
        return tuple(_tuples(item) for item in cast("list[Any]", value))
    if isinstance(value, dict):
        return {name: _tuples(item) for name, item in cast("dict[str, Any]", value).items()}
    return value


class _Scorers:
    """The scorers of all datasets, each made once."""

    def __init__(self, reasoning_gym: Any) -> None:
        self._make = reasoning_gym.get_score_answer_fn
        self._known = frozenset(cast("dict[str, Any]", vars(reasoning_gym.factory)["DATASETS"]))
        self.scorer = lru_cache(maxsize=64)(self._make)
        self.readable = lru_cache(maxsize=256)(self._readable)

    def score(self, request: Message) -> Message:
        """What the dataset's scorer gives the answer."""
        dataset, answer = str(request["dataset"]), str(request["answer"])
        if dataset not in self._known:
            return {"invalid": f"metadata.dataset: reasoning-gym has no dataset {dataset!r}"}
        entry = self.readable(dataset, json.dumps(request["entry"]))
        if entry is None:
            return {
                "invalid": "metadata.entry: its own answer is not right by its scorer, so something was lost"
            }
        if dataset in _EXPRESSIONS and not is_arithmetic(answer):
            return {"value": 0.0, "reason": "the answer is no arithmetic expression"}
        try:
            value = float(self.scorer(dataset)(answer, copy.deepcopy(entry)))  # some scorers change the entry
        except _UNREADABLE as problem:
            if not isinstance(entry["answer"], str):  # the entry was not tried
                raise
            return {"value": 0.0, "reason": f"the scorer cannot read the answer: {problem}"[:200]}
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"the scorer gave {value}, which is outside [0, 1]")
        return {"value": value, "reason": f"scored by {dataset}"}

    def _readable(self, dataset: str, text: str) -> Message | None:
        """The entry as the scorer understands it: its own answer must be right. JSON turned tuples into lists."""
        entry = cast(Message, json.loads(text))
        answer = entry["answer"]
        for candidate in (entry, cast(Message, _tuples(entry))):
            scored = copy.deepcopy(candidate)
            if not isinstance(answer, str) or float(self.scorer(dataset)(answer, scored)) == 1.0:
                return candidate
        return None


def prepare() -> Handler:
    """Import reasoning-gym and replace its `eval`."""
    import reasoning_gym

    for name, module in list(sys.modules.items()):
        if name.startswith("reasoning_gym."):
            vars(module)["eval"] = evaluate
    return _Scorers(reasoning_gym).score


if __name__ == "__main__":
    serve(prepare)
