"""Matrices, systems and products of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guerdon_services.math.expression import parse
from guerdon_services.math.lexer import Token, Unreadable
from guerdon_services.math.shapes import Many, Matrix, Quantity, Shape
from guerdon_services.math.tree import Add, Mul, Node

if TYPE_CHECKING:
    from guerdon_services.math.reader import Reader

_MAX_CELLS = 500
_SYSTEMS = frozenset({"cases", "aligned", "align", "gathered", "split", "array"})
_OPENERS, _CLOSERS = frozenset({"(", "[", "{", r"\{"}), frozenset({")", "]", "}", r"\}"})


def read(reader: Reader, tokens: list[Token], depth: int) -> Shape | None:
    """A matrix, a product of matrices and a number, or the rows of a system; None when there is no environment."""
    if not any(token.kind == "environment" for token in tokens):
        return None
    shape: Shape | None = None
    scalars: list[Node] = []
    for piece in _pieces(tokens):
        if piece[0].kind != "environment":
            scalars.append(parse(piece, reader.reading))
        elif shape is None:
            shape = _environment(reader, piece, depth)
        else:
            shape = _product(shape, _environment(reader, piece, depth))
    if scalars and isinstance(shape, Matrix):
        return Matrix(tuple(tuple(_times(scalars, cell) for cell in row) for row in shape.rows))
    return None if scalars else shape


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
    trimmed = [piece[1:] if piece and piece[0].text == "*" else piece for piece in pieces]
    return [
        piece[:-1] if piece[-1].text == "*" else piece
        for piece in trimmed
        if (piece and piece != [piece[0]]) or (piece and piece[0].text != "*")
    ]


def _environment(reader: Reader, tokens: list[Token], depth: int) -> Shape:
    cells = _cells(tokens[1:-1])
    if sum(map(len, cells)) > _MAX_CELLS:
        raise Unreadable("a matrix of too many cells")
    if tokens[0].text in _SYSTEMS and (all(len(row) == 1 for row in cells) or tokens[0].text == "aligned"):
        joined = [[token for cell in row for token in cell] for row in cells]
        return Many("list", tuple(reader.read(row, depth + 1) for row in joined))
    return Matrix(tuple(tuple(reader.read(cell, depth + 1) for cell in row) for row in cells))


def _cells(tokens: list[Token]) -> list[list[list[Token]]]:
    rows: list[list[list[Token]]] = [[[]]]
    depth = 0
    for token in tokens:
        if token.kind == "mark":
            depth += (token.text in _OPENERS) - (token.text in _CLOSERS)
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


def _product(left: Shape, right: Shape) -> Shape:
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
