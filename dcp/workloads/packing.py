"""Documents to batches of at most so many tokens."""

from __future__ import annotations

from collections.abc import Sequence


def cut(lengths: Sequence[int], tokens: int, num_batches: int) -> tuple[list[int], list[bool]]:
    """Cut documents that are longer than a batch.

    Pieces that fill a batch each are left over beyond `num_batches` of one document.

    Returns:
        Lengths in order, and whether each is a piece of a longer document.
    """
    pieces: list[int] = []
    is_piece: list[bool] = []
    for length in lengths:
        whole, rest = divmod(length, tokens)
        parts = [tokens] * min(whole, num_batches) + [rest] * (rest > 0 or whole == 0)
        pieces += parts
        is_piece += [length > tokens] * len(parts)
    return pieces, is_piece


def first_fit(lengths: Sequence[int], tokens: int, num_batches: int) -> list[list[int]]:
    """Put every document into the first batch with room for it.

    Args:
        lengths: None is longer than `tokens`.
        tokens: Most tokens a batch.
        num_batches: Most batches; what fits in none is left over.

    Returns:
        Indices of the documents of each batch.
    """
    batches: list[list[int]] = []
    rooms: list[int] = []
    for index, length in enumerate(lengths):
        fitting = (place for place, room in enumerate(rooms) if room >= length)
        place = next(fitting, len(batches))
        if place == num_batches:
            continue
        if place == len(batches):
            batches.append([])
            rooms.append(tokens)
        batches[place].append(index)
        rooms[place] -= length
    return batches
