"""Which sources of tests leave nothing behind: those may run one after the other in one process.

An allow-list of syntax, names and attributes, checked on the source's tree before it is compiled; what is not listed
is not pure, which costs a sandbox of its own and nothing else. Pure code makes plain values and functions, calls
the program, and compares. It stores to names of its own only, never to attributes, items or globals, and no name or
attribute leads it to anything that outlives it and can change.
"""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any, cast

from guerdon_services.code.plain_side import Call
from guerdon_services.code.pure_calls import Foreseen, keyword, literal
from guerdon_services.code.pure_names import (
    ALL_BUILTINS,
    ALLOWED_BUILTINS,
    ATTRIBUTES,
    MEMBERS,
    TYPING,
    NotPure,
)

#: Nodes of which every part is read like any other.
_GENERIC = (
    *(ast.Module, ast.Assign, ast.AugAssign, ast.Set, ast.Slice, ast.Starred, ast.keyword),
    *(ast.JoinedStr, ast.FormattedValue),
)
#: Those whose parts may be executed once, never or many times.
_UNSURE = (
    *(ast.For, ast.While, ast.If, ast.Expr, ast.IfExp, ast.ListComp, ast.SetComp, ast.DictComp),
    *(ast.GeneratorExp, ast.comprehension, ast.Lambda, ast.arguments),
)
_NOTHING = (
    ast.Pass,
    ast.Break,
    ast.Continue,
    ast.expr_context,
    ast.operator,
    ast.unaryop,
    ast.boolop,
    ast.cmpop,
)
#: What an assert may hold that only compares an answer with literals; calls and subtractions are looked at.
_PLAIN = (
    *(ast.Compare, ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.Call, ast.keyword),
    *(ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict, *_NOTHING),
)


@dataclass(frozen=True)
class Pure:
    """A source that may run beside others."""

    code: CodeType
    #: Global names that it reads and that are no builtins.
    globals: tuple[str, ...]
    #: Whether it draws random numbers.
    random: bool
    #: Names that are called and nothing else.
    called: frozenset[str]
    #: Calls of the program that it will make, one after the other, as long as its tests pass, in groups that may be
    #: asked at once. Whoever asks them ahead has to see that they come.
    foreseen: list[list[Call]]
    #: Whether those are all.
    complete: bool


def compiled(source: str, name: str, function: str = "") -> Pure:
    """The source's code, if it is pure; `function` is the program's that `candidate` stands for.

    Raises:
        NotPure: it is not, or cannot be compiled.
    """
    try:
        tree = ast.parse(source)
        reader = _Reader(function)
        reader.read(tree)
        code = compile(tree, name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NotPure(f"{error}") from None
    known = dict.fromkeys(_global_names(code))
    names = reader.loaded | reader.called
    return Pure(
        code=code,
        globals=tuple(each for each in known if each in names and each not in ALLOWED_BUILTINS),
        random=reader.random,
        called=frozenset(reader.called - reader.loaded),
        foreseen=reader.foreseen.groups,
        complete=reader.sure and bool(reader.foreseen.count),
    )


def _global_names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)


class _Reader:
    """Reads a tree once: what is in it, and which calls of the program will be made whatever it answers.

    For the calls, only what can be seen at a glance counts: literal arguments, in statements that follow each other.
    """

    def __init__(self, function: str) -> None:
        #: Names read as values, and those that are called.
        self.loaded: set[str] = set()
        self.called: set[str] = set()
        self.random = False
        self.foreseen = Foreseen()
        #: The present statement compares what the program answers with literals, and does nothing else.
        self._plain = True
        #: No call was missed so far.
        self.sure = True
        #: What is read now happens once; or, in the functions of the tests, not before they are called.
        self._once = True
        self._later = False
        self._function = function
        #: Names of the program's functions, and those that have nothing to do with the program.
        self._of_program = {function: function, "candidate": function} if function else {}
        self._others: set[str] = set()
        self._of_typing: set[str] = set()
        self._annotated: set[str] = set()
        self._check: Any = None
        self._pytest = False
        self._readers: dict[type[ast.AST], Callable[[Any], None]] = {
            ast.Name: self._name,
            **dict.fromkeys((ast.Constant, ast.List, ast.Tuple, ast.Dict), self._maybe_literal),
            ast.UnaryOp: self._unary_op,
            ast.BinOp: self._bin_op,
            ast.Return: self._return,
            ast.Attribute: self._attribute,
            ast.Subscript: self._subscript,
            ast.Call: self._call,
            ast.Compare: self._compare,
            ast.BoolOp: self._bool_op,
            ast.Assert: self._assert,
            ast.FunctionDef: self._def,
            ast.arg: self._argument,
            ast.Import: self._import,
            ast.ImportFrom: self._import,
        }

    def read(self, tree: ast.Module) -> None:
        """Raises NotPure."""
        self._parts(tree)
        if self._check is not None:
            self._body_of_check(self._check)
        elif self._pytest:
            raise NotPure("functions for pytest")
        if not (self.loaded | self.called).isdisjoint(self._of_typing):
            raise NotPure("a type as a value")
        if not self._annotated <= ALLOWED_BUILTINS | self._of_typing:
            raise NotPure("an annotation")

    def _read(self, node: ast.AST) -> None:
        self._plain = self._plain and isinstance(node, _PLAIN)
        reader = self._readers.get(type(node))
        if reader:
            reader(node)
        elif isinstance(node, _GENERIC):
            self._parts(node)
        elif isinstance(node, _UNSURE):
            self._unsure(node)
        elif not isinstance(node, _NOTHING):
            raise NotPure(type(node).__name__)

    def _parts(self, node: ast.AST) -> None:
        for field in node._fields:
            part: Any = getattr(node, field)
            if type(part) is list:
                for each in cast("list[Any]", part):
                    if each is not None:
                        self._read(each)
            elif isinstance(part, ast.AST):
                self._read(part)

    def _unsure(self, node: ast.AST) -> None:
        once, self._once = self._once, False
        self._parts(node)
        self._once = once

    def _name(self, node: Any) -> None:
        name = node.id
        if type(node.ctx) is not ast.Load:
            if name.startswith("__"):
                raise NotPure(name)
            self._others.add(name)
            return
        if name == "type":
            raise NotPure("types can make new ones")
        self._allowed(name)
        self.loaded.add(name)
        self.random |= name == "random"
        if name in self._of_program and not self._later:
            self.sure = False  # who knows who calls it

    def _allowed(self, name: str) -> None:
        if name not in ALLOWED_BUILTINS and (
            name in ALL_BUILTINS or (name.startswith("__") and name != "__name__")
        ):
            raise NotPure(name)

    def _maybe_literal(self, node: Any) -> None:
        try:
            self.foreseen.literal(literal(node))
        except LookupError:
            if type(node) is ast.Constant:
                raise NotPure("...") from None
            self._parts(node)

    def _unary_op(self, node: Any) -> None:
        if type(node.op) is ast.Not:
            self._read(node.operand)
            return
        try:
            self.foreseen.literal(literal(node))
        except LookupError:
            self._plain = False
            self._read(node.operand)

    def _bin_op(self, node: Any) -> None:
        count = self.foreseen.count
        self._read(node.left)
        # An answer less a number: a comparison. All else gives what is expected another form.
        self._plain &= (
            type(node.op) is ast.Sub and self.foreseen.count > count and type(node.right) is ast.Constant
        )
        self._read(node.right)

    def _return(self, node: Any) -> None:
        if node.value is not None:
            self._read(node.value)
        if not self._later:
            self.sure = False  # what follows may never come

    def _attribute(self, node: Any) -> None:
        if type(node.ctx) is not ast.Load or node.attr not in ATTRIBUTES:
            raise NotPure(f".{node.attr}")
        self._read(node.value)

    def _subscript(self, node: Any) -> None:
        if type(node.ctx) is not ast.Load:
            raise NotPure("stores to what may be another's")
        self._parts(node)

    def _compare(self, node: Any) -> None:
        self._read(node.left)
        self._read(node.comparators[0])
        for later in node.comparators[1:]:
            self._unsure_one(later)

    def _bool_op(self, node: Any) -> None:
        self._read(node.values[0])
        for later in node.values[1:]:
            self._unsure_one(later)

    def _assert(self, node: Any) -> None:
        count = self.foreseen.count
        self._plain = True
        self._read(node.test)
        self.foreseen.statement(calls=self.foreseen.count - count, plain=self._plain)
        if node.msg is not None:
            self._unsure_one(node.msg)

    def _unsure_one(self, node: ast.AST) -> None:
        once, self._once = self._once, False
        self._read(node)
        self._once = once

    def _call(self, node: Any) -> None:
        function = node.func
        if type(function) is not ast.Name:
            self._plain = False
            self._read(function)
        else:
            name = function.id
            self._allowed(name)
            self.called.add(name)
            if not self._later and name not in ALLOWED_BUILTINS and self.sure and self._foreseen(node, name):
                return
            self._plain &= name == "abs" and len(node.args) == 1 and type(node.args[0]) is ast.BinOp
        for part in node.args:
            self._read(part)
        for part in node.keywords:
            self._read(part.value)

    def _foreseen(self, node: Any, name: str) -> bool:
        """Whether the call is now among those foreseen, its arguments being literals."""
        if name in self._others:
            return False
        of_program = self._of_program.get(name, "" if self._function else name)
        if of_program and self._once:
            try:
                arguments = [literal(part) for part in node.args]
                keywords = {keyword(part): literal(part.value) for part in node.keywords}
            except LookupError:
                pass
            else:
                self.foreseen.call((of_program, arguments, keywords))
                return True
        self.sure = False
        return False

    def _def(self, node: Any) -> None:
        if node.decorator_list or node.name.startswith("__") or getattr(node, "type_params", None):
            raise NotPure("a decorator")
        self._pytest |= node.name.startswith("test")
        if node.returns is not None:
            self._annotation(node.returns)
            node.returns = None
        self._unsure(node.args)
        if node.name == "check" and self._check is None and not self._later:
            self._check = node  # called at the end
            return
        # Whoever calls it or hands it on may call the program.
        self._of_program.setdefault(node.name, "")
        later, self._later = self._later, True
        for statement in node.body:
            self._read(statement)
        self._later = later

    def _body_of_check(self, node: Any) -> None:
        arguments = node.args
        if self._function and len(arguments.args) == 1 and not arguments.posonlyargs:
            self._of_program[arguments.args[0].arg] = self._function
        self._of_program["check"] = ""
        for statement in node.body:
            self._read(statement)

    def _argument(self, node: Any) -> None:
        if node.arg.startswith("__"):
            raise NotPure(node.arg)
        if node.annotation is not None:
            self._annotation(node.annotation)
            node.annotation = None

    def _annotation(self, node: ast.AST) -> None:
        """Annotations are not executed: only such as cannot fail may be left out."""
        if isinstance(node, ast.Name):
            self._annotated.add(node.id)
            return
        if isinstance(node, ast.Constant) and node.value is None:
            return
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            for part in (node.value, *inner):
                self._annotation(part)
            return
        raise NotPure("an annotation")

    def _import(self, node: Any) -> None:
        names = {alias.asname or alias.name for alias in node.names}
        if any(name.startswith("__") for name in names):
            raise NotPure("a name for a module")
        self._others |= names
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name not in MEMBERS:
                    raise NotPure(f"import {alias.name}")
                self.random |= alias.name == "random"
            return
        assert isinstance(node, ast.ImportFrom)
        members = TYPING if node.module == "typing" else MEMBERS.get(node.module or "", frozenset())
        if node.level or not all(alias.name in members for alias in node.names):
            raise NotPure(f"from {node.module} import")
        self.random |= node.module == "random"
        if node.module == "typing":
            self._of_typing |= names
