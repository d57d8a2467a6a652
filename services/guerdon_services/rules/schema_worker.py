"""One worker process of the rule json_schema: parses a response's JSON and validates it.

Request: {"schema": {...}, "text": str}. Reply: {"value": number, "reason": str}, or {"invalid": str} when the schema is
at fault. jsonschema runs the schema's patterns with `re`, which backtracks without end and holds the interpreter
while it does, and compares the items of an array pairwise: the text of a policy decides how long either takes.
"""

import json
from functools import lru_cache
from typing import Any, NoReturn, cast

from guerdon_services.workers import Handler, Message, serve

#: Nesting of a value below which endless recursion is the schema's fault, not the value's.
_SHALLOW = 50


def judge(request: Message) -> Message:
    """1 when the text is JSON that satisfies the schema, else 0."""
    try:
        value = json.loads(str(request["text"]), parse_constant=_refuse)
    except (ValueError, RecursionError) as problem:
        return _reply(0.0, f"no JSON: {problem}"[:200])
    return _validated(json.dumps(request["schema"], sort_keys=True), value)


def _validated(schema: str, value: Any) -> Message:
    from referencing.exceptions import Unresolvable

    try:
        fault = next(iter(_validator(schema).iter_errors(value)), None)
    except Unresolvable as problem:
        return {"invalid": f"options.rules: the schema refers to {problem.ref!r}, which is not in it"}
    except OverflowError as problem:  # multipleOf, of an integer beyond every float
        return _reply(0.0, f"a number is too large: {problem}")
    except BaseException as problem:
        # rpds, which jsonschema keeps its scopes in, panics with a class of its own when the stack ends.
        if not isinstance(problem, RecursionError) and type(problem).__name__ != "PanicException":
            raise
        if _depth(value) < _SHALLOW:
            return {"invalid": "options.rules: the schema refers to itself without end"}
        return _reply(0.0, "nested too deeply")
    if fault is None:
        return _reply(1.0, "satisfies the schema")
    return _reply(0.0, f"{fault.json_path}: {fault.message}"[:300])


def _depth(value: Any) -> int:
    """How deeply a JSON value is nested, counted up to where it is no longer shallow."""
    level, depth = [value], 0
    while depth < _SHALLOW:
        level = [child for part in level for child in _children(part)]
        if not level:
            return depth
        depth += 1
    return depth


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(cast(dict[str, Any], value).values())
    return cast(list[Any], value) if isinstance(value, list) else []


def _reply(value: float, reason: str) -> Message:
    return {"value": value, "reason": reason}


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


@lru_cache(maxsize=128)
def _validator(schema: str) -> Any:
    from jsonschema import Draft202012Validator
    from referencing import Registry

    # An empty registry: what a schema refers to elsewhere is not fetched.
    return Draft202012Validator(json.loads(schema), registry=cast(Any, Registry)())


def _prepare() -> Handler:
    _validator("{}")
    return judge


if __name__ == "__main__":
    serve(_prepare)
