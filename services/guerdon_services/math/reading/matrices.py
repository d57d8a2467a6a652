"""Matrices, systems and products of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guerdon_services.math.notation.brackets import levels
from guerdon_services.math.notation.expression import MAX_HEIGHT, parse
from guerdon_services.math.notation.lexer import Token, Unreadable
from guerdon_services.math.notation.tree import MINUS_ONE, Add, Mul, Node, is_within, negated
from guerdon_services.math.reading.shapes import Many, Matrix, Quantity, Shape

if TYPE_CHECKING:
    from guerdon_services.math.reading.reader import Reader

_MAX_CELLS = 500
_MAX_DETERMINANT = 5
#: Matrices of one product, and nodes of what products and determinants make: these share their parts, and whoever
#: walks the trees would meet a part as often as the product names it.
_MAX_FACTORS = 20
_MAX_NODES = 5000
_SYSTEMS = frozenset({"cases", "aligned", "align", "gathered", "split", "array"})


def read(reader: Reader, tokens: list[Token], depth: int) -> Shape | None:
    """A matrix, a product of matrices and a number, or the rows of a system; None when there is no environment."""
    if not any(token.kind == "environment" for token in tokens):
        return None
    tokens, bracketed = _unbracketed(tokens)
    ends = sum(token.text == "end" for token in tokens if token.kind == "environment")
    if 2 * ends != sum(token.kind == "environment" for token in tokens):
        raise Unreadable("an environment that does not end")
    if tokens[0].text == r"\det" and len(tokens) > 2:
        shape = read(reader, tokens[1:], depth)
        return _checked(Quantity(_determinant(shape.rows))) if isinstance(shape, Matrix) else shape
    shape: Shape | None = None
    scalars: list[Node] = []
    pieces = _pieces(tokens)
    if sum(piece[0].kind == "environment" for piece in pieces) > _MAX_FACTORS:
        raise Unreadable("a product of too many matrices")
    for piece in pieces:
        if [token.text for token in piece] == ["-"]:
            scalars.append(MINUS_ONE)
        elif piece[0].kind != "environment":
            scalars.append(parse(piece, reader.reading))
        elif shape is None:
            shape = _environment(reader, piece, depth, bracketed)
        else:
            shape = _checked(_product(shape, _environment(reader, piece, depth, bracketed)))
    if scalars and isinstance(shape, Matrix):
        return _checked(Matrix(tuple(tuple(_times(scalars, cell) for cell in row) for row in shape.rows)))
    return None if scalars else shape


def _unbracketed(tokens: list[Token]) -> tuple[list[Token], bool]:
    """An environment without the brackets around it, and whether these are those of a matrix."""
    if tokens[0].kind == "mark" and len(tokens) > 2 and tokens[1].kind == "environment":
        if tokens[-1].kind == "mark" and (tokens[0].text, tokens[-1].text) in (("(", ")"), ("[", "]")):
            return tokens[1:-1], True
        if tokens[0].text == r"\{" and tokens[-1].text == "end":
            return [tokens[1]._replace(text="cases"), *tokens[2:]], False
    return tokens, False


def _pieces(tokens: list[Token]) -> list[list[Token]]:
    """Environments, and what stands between them without signs of multiplication."""
    pieces: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        begins = token.kind == "environment" and token.text != "end"
        if begins and depth == 0:
            pieces.append([])
        depth += begins
        pieces[-1].append(token)
        if token.kind == "environment" and token.text == "end":
            depth -= 1
            if depth == 0:
                pieces.append([])
    for piece in pieces:
        if piece and piece[0].text == "*":
            del piece[0]
        if piece and piece[-1].text == "*":
            del piece[-1]
    return [piece for piece in pieces if piece]


def _environment(reader: Reader, tokens: list[Token], depth: int, bracketed: bool) -> Shape:
    cells = _cells(tokens[1:-1])
    if sum(map(len, cells)) > _MAX_CELLS:
        raise Unreadable("a matrix of too many cells")
    if (
        not bracketed
        and tokens[0].text in _SYSTEMS
        and (all(len(row) == 1 for row in cells) or tokens[0].text == "aligned")
    ):
        joined = [[token for cell in row for token in cell] for row in cells]
        return Many("list", tuple(reader.read(row, depth + 1) for row in joined))
    rows = tuple(tuple(reader.read(cell, depth + 1) for cell in row) for row in cells)
    if tokens[0].text == "cases" and all(len(row) == 2 for row in rows):
        # Whatever the order in which they are named, each value goes with its condition.
        rows = tuple(sorted(rows, key=lambda row: repr(row[1])))
    return _checked(Quantity(_determinant(rows))) if tokens[0].text == "vmatrix" else Matrix(rows)


def _checked(shape: Quantity | Matrix) -> Quantity | Matrix:
    """The shape, unless it is too large."""
    cells = [shape] if isinstance(shape, Quantity) else [cell for row in shape.rows for cell in row]
    nodes = [cell.node for cell in cells if isinstance(cell, Quantity)]
    if not is_within(nodes, nodes=_MAX_NODES, height=MAX_HEIGHT):
        raise Unreadable("a product or a determinant that is too large")
    return shape


def _cells(tokens: list[Token]) -> list[list[list[Token]]]:
    rows: list[list[list[Token]]] = [[[]]]
    for token, depth in levels(tokens):
        if token.kind == "mark" and token.text == r"\\" and depth <= 0:
            rows.append([[]])
        elif token.kind == "mark" and token.text == "&" and depth <= 0:
            rows[-1].append([])
        elif token.text != r"\hline":
            rows[-1][-1].append(token)
    return [row for row in rows if row != [[]]]


def _times(scalars: list[Node], cell: Shape) -> Shape:
    if not isinstance(cell, Quantity):
        raise Unreadable("a multiple of what is no number")
    return Quantity(Mul((*scalars, cell.node)))


def _determinant(rows: tuple[tuple[Shape, ...], ...]) -> Node:
    """The determinant, developed along the first row."""
    if not 1 <= len(rows) <= _MAX_DETERMINANT or any(len(row) != len(rows) for row in rows):
        raise Unreadable("a determinant of what is no small square")
    first = [cell.node for cell in rows[0] if isinstance(cell, Quantity)]
    if len(first) != len(rows):
        raise Unreadable("a determinant of what are no numbers")
    if len(first) == 1:
        return first[0]
    terms: list[Node] = []
    for column, factor in enumerate(first):
        minor = tuple(row[:column] + row[column + 1 :] for row in rows[1:])
        term = Mul((factor, _determinant(minor)))
        terms.append(negated(term) if column % 2 else term)
    return Add(tuple(terms))


def _product(left: Shape, right: Shape) -> Matrix:
    if not isinstance(left, Matrix) or not isinstance(right, Matrix):
        raise Unreadable("a product of what are no matrices")
    columns = list(zip(*right.rows, strict=False))
    if any(len(row) != len(right.rows) for row in left.rows):
        raise Unreadable("a product of matrices that do not fit")
    return Matrix(tuple(tuple(_dot(row, column) for column in columns) for row in left.rows))


def _dot(row: tuple[Shape, ...], column: tuple[Shape, ...]) -> Shape:
    terms: list[Node] = []
    for left, right in zip(row, column, strict=True):
        if not isinstance(left, Quantity) or not isinstance(right, Quantity):
            raise Unreadable("a product of what are no numbers")
        terms.append(Mul((left.node, right.node)))
    return Quantity(terms[0] if len(terms) == 1 else Add(tuple(terms)))
