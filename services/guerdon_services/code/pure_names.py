"""What pure tests may name (`pure`), and what they get under these names when they run."""

import builtins
import importlib
from typing import Any, cast

_BUILTINS = """
abs all any bool bytes chr complex dict divmod enumerate filter float frozenset int isinstance len list map max min
ord pow print range repr reversed round set slice sorted str sum tuple type zip
"""
#: Modules that pure tests may import, and what of them; all of it without a state of its own, except for `random`,
#: which gets a new one for each run.
MODULES = {
    "collections": "Counter OrderedDict defaultdict deque",
    "copy": "copy deepcopy",
    "functools": "reduce",
    "itertools": "accumulate chain combinations islice permutations product repeat zip_longest",
    "math": "ceil comb cos dist e exp fabs factorial floor gcd hypot inf isclose isinf isnan isqrt log log10 log2 nan "
    "perm pi pow prod sin sqrt tan trunc",
    "random": "Random choice choices randint random randrange sample shuffle uniform",
    "string": "ascii_letters ascii_lowercase ascii_uppercase digits punctuation",
}
#: Only for annotations, which are left out.
_OFTYPING = """
Any Callable Dict Iterable List Optional Sequence Set Tuple Union
"""
_METHODS = """
add append capitalize clear copy count decode difference discard encode endswith extend get index insert intersection
isalpha isdigit islower isspace issubset issuperset isupper items join keys lower lstrip most_common pop remove replace
reverse rstrip setdefault sort split splitlines startswith strip swapcase symmetric_difference title union update upper
values zfill
"""
TYPING = frozenset(_OFTYPING.split())
MEMBERS = {name: frozenset(members.split()) for name, members in MODULES.items()}
ATTRIBUTES = frozenset(_METHODS.split()).union(*MEMBERS.values())
ALLOWED_BUILTINS = frozenset(_BUILTINS.split())
ALL_BUILTINS = frozenset(vars(builtins))
_VALUE_TYPES = frozenset(
    {bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, range, type(None)}
)


class NotPure(Exception):
    """The source does what is not on the list."""


def _import(name: str, globals: Any = None, locals: Any = None, names: Any = (), level: int = 0) -> Any:
    if level or (name not in MEMBERS and name != "typing"):
        raise NotPure(f"import {name}")
    return importlib.import_module(name)


def _type(value: Any) -> type[Any]:
    kind = cast("type[Any]", type(value))
    if kind not in _VALUE_TYPES:
        raise NotPure(f"the type of a {kind.__name__}")
    return kind


def _print(*values: Any, **options: Any) -> None:
    """Nobody reads what tests print."""


#: All the builtins that pure code gets: a second wall behind the check of its source.
BUILTINS: dict[str, Any] = {name: getattr(builtins, name) for name in _BUILTINS.split()} | {
    "__import__": _import,
    "type": _type,
    "print": _print,
}


def from_library(name: str) -> Any:
    """A module or member that tests use without importing it; `name` as "module" or "module.member".

    Raises:
        NotPure: it is not on the list.
    """
    module, _, member = name.partition(".")
    if module not in MEMBERS or (member and member not in MEMBERS[module]):
        raise NotPure(name)
    found = importlib.import_module(module)
    return getattr(found, member) if member else found
