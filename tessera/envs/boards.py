"""Games of pgx in text: boards as they are drawn, and moves as they are written.

Who moves first is X, or has capital letters, and is drawn at the bottom. All functions read a state of NumPy arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

LETTERS = "abcdefghijklmnopqrstuvwxyz"
GO_LETTERS = LETTERS.replace("i", "")
"""Columns in Go: i would look like j."""
STONES = np.asarray([".", "X", "O"])
CARDS = "JQK"
CHESS = ".PNBRQK"
SHOGI = "CEGLH"
"""Chick, elephant, giraffe, lion, hen."""

KNIGHT_JUMPS = ((-2, -1), (-2, 1), (-1, -2), (-1, 2), (2, -1), (2, 1), (1, -2), (1, 2))
"""Columns and rows that a knight goes, in the order of actions."""


@dataclass(frozen=True)
class Board:
    """How a game is shown."""

    draw: Callable[[Any, int | None], str]
    """(state, player) -> the board as that player sees it; None sees all."""
    move: Callable[[Any, int], str]
    """(state, action) -> how the move is written that the action is for who moves."""
    example: str
    """A move, for messages."""


def _grid(rows: Sequence[Sequence[str]], columns: str, numbers: Sequence[int], shift: int = 0) -> str:
    """Rows of cells with a number each, below letters of columns; each row is `shift` further to the right."""
    letters = " ".join(columns[: len(rows[0])])
    lines = [f"   {letters}"]
    lines += [
        f"{' ' * shift * k}{number:2} {' '.join(row)}"
        for k, (number, row) in enumerate(zip(numbers, rows, strict=True))
    ]
    return "\n".join(lines)


def _cell_name(action: int, width: int, height: int, columns: str = LETTERS, upwards: bool = False) -> str:
    row, column = divmod(action, width)
    return f"{columns[column]}{height - row if upwards else row + 1}"


def _stones(colours: np.ndarray, height: int) -> list[list[str]]:
    """Cells of a board: 1 is a stone of the first player, 2 or -1 one of the other."""
    return STONES[np.asarray(colours).reshape(height, -1)].tolist()


def othello_signs(state: Any) -> np.ndarray:
    """Stones of who moves first as 1, of the other one as -1."""
    return np.sign(state._x.board) * (1 if state._x.turn == 0 else -1)


def hex_signs(state: Any) -> np.ndarray:
    """Stones of who moves first as 1, of the other one as -1."""
    return np.sign(state._x.board) * (1 if state._x.step_count % 2 == 0 else -1)


def chess_cells(state: Any) -> np.ndarray:
    """[row, column] pieces by their place in CHESS, those of who moves first above 0; its side is at the bottom."""
    cells = np.asarray(state._board).reshape(5, 5)  # [column, row], as who moves sees it
    cells = cells if state._turn == 0 else -cells[:, ::-1]
    return cells.T[::-1]


def shogi_cells(state: Any) -> np.ndarray:
    """[row, column] pieces by their place in SHOGI from 1 on, those of who moves first above 0; 0 is none."""
    turn = int(state._turn)
    board = np.asarray(state._board) if turn == 0 else np.asarray(state._board)[::-1]
    cells = board.reshape(3, 4)[::-1].T  # columns are counted from the right
    return np.where(cells < 0, 0, (cells % 5 + 1) * np.where((cells < 5) == (turn == 0), 1, -1))


def shogi_hands(state: Any) -> list[list[str]]:
    """The pieces that who moves first has taken, and the other one's."""
    hands = state._hand if int(state._turn) == 0 else state._hand[::-1]
    return [[SHOGI[k] for k, n in enumerate(hand) for _ in range(int(n))] for hand in hands]


def _draw_tic_tac_toe(state: Any, player: int | None) -> str:
    del player
    return _grid(_stones(state._x.board + 1, 3), LETTERS, range(1, 4))


def _draw_connect_four(state: Any, player: int | None) -> str:
    del player
    rows = [" ".join(row) for row in _stones(state._x.board + 1, 6)]
    return "\n".join(["a b c d e f g", *rows, "0 1 2 3 4 5 6"])


def _draw_othello(state: Any, player: int | None) -> str:
    del player
    signs = othello_signs(state)
    counts = f"X has {(signs > 0).sum()}, O has {(signs < 0).sum()}"
    return f"{_grid(_stones(signs, 8), LETTERS, range(1, 9))}\n{counts}"


def _draw_hex(state: Any, player: int | None) -> str:
    del player
    board = _grid(_stones(hex_signs(state), 11), LETTERS, range(1, 12), shift=1)
    return f"{board}\nX connects top and bottom, O left and right"


def _draw_go(state: Any, player: int | None) -> str:
    del player
    board = _grid(_stones(np.sign(state._x.board), 9), GO_LETTERS, range(9, 0, -1))
    taken = state._x.num_captured
    return f"{board}\nX has taken {int(taken[0])}, O has taken {int(taken[1])}"


def _draw_chess(state: Any, player: int | None) -> str:
    del player
    rows = [[_letter(CHESS[abs(piece)], piece > 0) for piece in row] for row in chess_cells(state)]
    return _grid(rows, LETTERS, range(5, 0, -1))


def _letter(letter: str, first: bool) -> str:
    return letter if first else letter.lower()


def _square(cell: int, turn: int) -> str:
    """A square of the chess board, given as who moves counts it."""
    column, row = divmod(cell, 5)
    return f"{LETTERS[column]}{(row if turn == 0 else 4 - row) + 1}"


def chess_target(action: int) -> tuple[int, int, str]:
    """Where a piece goes from and to, as who moves counts squares, and the letter of what a pawn becomes if it is not a
    queen; -1 for a target that is not on the board."""
    cell, plane = divmod(action, 49)
    column, row = divmod(cell, 5)
    becomes = ""
    if plane < 9:
        right, up = (0, 1, -1)[plane % 3], 1
        becomes = "rbn"[plane // 3]
    elif plane < 41:
        line, k = divmod(plane - 9, 8)
        far = k - 4 if k < 4 else k - 3
        right, up = ((0, far), (far, 0), (far, far), (far, -far))[line]
    else:
        right, up = KNIGHT_JUMPS[plane - 41]
    column, row = column + right, row + up
    inside = 0 <= column < 5 and 0 <= row < 5 and not (becomes and row < 4)
    return cell, column * 5 + row if inside else -1, becomes


def _name_chess(state: Any, action: int) -> str:
    start, end, becomes = chess_target(action)
    if end < 0:
        return ""
    promoted = abs(int(state._board[start])) == 1 and end % 5 == 4
    turn = int(state._turn)
    return _square(start, turn) + _square(end, turn) + (becomes or "q" * promoted)


def _draw_shogi(state: Any, player: int | None) -> str:
    del player
    rows = [[_letter(SHOGI[abs(p) - 1], p > 0) if p else "." for p in row] for row in shogi_cells(state)]
    held = ["".join(hand) or "nothing" for hand in shogi_hands(state)]
    return f"{_grid(rows, LETTERS, range(1, 5))}\ncapitals hold {held[0]}, the others hold {held[1].lower()}"


def _shogi_square(cell: int, turn: int) -> str:
    column, row = divmod(cell if turn == 0 else 11 - cell, 4)
    return f"{LETTERS[2 - column]}{row + 1}"


def _name_shogi(state: Any, action: int) -> str:
    kind, cell = divmod(action, 12)
    turn = int(state._turn)
    if kind >= 8:  # a piece from the hand
        return f"{SHOGI[kind - 8]}*{_shogi_square(cell, turn)}"
    column, row = divmod(cell, 4)
    column += (-1, -1, -1, 0, 0, 1, 1, 1)[kind]
    row += (-1, 0, 1, -1, 1, -1, 0, 1)[kind]
    if not (0 <= column < 3 and 0 <= row < 4):
        return ""
    return _shogi_square(cell, turn) + _shogi_square(column * 4 + row, turn)


def _draw_cards(names: Sequence[str]) -> Callable[[Any, int | None], str]:
    def draw(state: Any, player: int | None) -> str:
        cards = [CARDS[int(card)] for card in state.game._cards]
        first = int(state.first)
        both = f"who began had {cards[first]}, the other one {cards[1 - first]}"
        lines = [both if player is None else f"your card: {cards[player]}"]
        if len(cards) > 2:
            shown = player is None or int(state.game._round) > 0
            lines.append(f"on the table: {cards[2] if shown else 'nothing yet'}")
        made = [names[int(move)] for move in state.moves if move >= 0]
        return "\n".join([*lines, f"moves so far: {', '.join(made) or 'none'}"])

    return draw


def _named(names: Sequence[str]) -> Callable[[Any, int], str]:
    return lambda state, action: names[action]


def _cells(side: int, last: str = "", columns: str = LETTERS, upwards: bool = False) -> Callable[[Any, int], str]:
    """Moves by cells of a square board, and one more without a cell."""
    return lambda state, action: last if action == side**2 else _cell_name(action, side, side, columns, upwards)


KUHN, LEDUC = ("bet", "pass"), ("call", "raise", "fold")

BOARDS = {
    "tic_tac_toe": Board(_draw_tic_tac_toe, _cells(3), "b2"),
    "connect_four": Board(_draw_connect_four, _named(LETTERS[:7]), "d"),
    "othello": Board(_draw_othello, _cells(8, "pass"), "d3"),
    "hex": Board(_draw_hex, _cells(11, "swap"), "f6"),
    "animal_shogi": Board(_draw_shogi, _name_shogi, "b3b2 or C*b2"),
    "gardner_chess": Board(_draw_chess, _name_chess, "a2a3"),
    "go_9x9": Board(_draw_go, _cells(9, "pass", GO_LETTERS, upwards=True), "e5"),
    "kuhn_poker": Board(_draw_cards(KUHN), _named(KUHN), "bet"),
    "leduc_holdem": Board(_draw_cards(LEDUC), _named(LEDUC), "call"),
}
"""Game -> how it is shown."""
