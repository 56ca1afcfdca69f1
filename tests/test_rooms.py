"""Where every module stands, and that imports only go up the table of rooms in the docs."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent


class Room(NamedTuple):
    """A row of the table: its modules, and the rooms and modules that they may import."""

    name: str
    modules: set[str]
    rooms: set[str]
    single: set[str]


def _files() -> dict[str, Path]:
    """Every module, as the table names it: `slices`, `runtime/once`, `__init__` for dcp itself."""
    package = ROOT / "dcp"
    folders = [package, *(path for path in package.iterdir() if path.is_dir())]
    found = (path for folder in folders for path in folder.glob("*.py"))
    return {path.relative_to(package).with_suffix("").as_posix(): path for path in found}


FILES = _files()


def _named(cell: str) -> set[str]:
    """The modules that a cell of the table names; `folder/*` is all of a folder."""
    found: set[str] = set()
    for name in re.findall(r"`([^`]+)`", cell):
        folder, _, rest = name.rpartition("/")
        found |= {one for one in FILES if one.startswith(f"{folder}/")} if rest == "*" else {name}
    return found


def _table() -> list[Room]:
    text = (ROOT / "docs" / "development.md").read_text(encoding="utf-8")
    section = text.partition("\n## Rooms\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| ")]
    rooms: list[Room] = []
    for name, modules, imports in ([cell.strip() for cell in row] for row in rows[1:]):
        given = {part.strip() for part in imports.split(",")} - {""}
        words = {part for part in given if not part.startswith("`")}
        above = {room.name for room in rooms}
        rooms.append(
            Room(
                name, _named(modules), above if words == {"everything"} else words, _named(imports)
            )
        )
    return rooms


ROOMS = _table()


def _imported(path: Path) -> Iterator[str]:
    """Modules of dcp that a file imports, wherever in it, as the table names them."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        yield from (_module(name) for name in names if name.split(".")[0] == "dcp")


def _module(name: str) -> str:
    """The module that a dotted name is, or is in: what `from dcp.masks import causal` loads."""
    parts = name.split(".")[1:]
    ways = ["/".join(parts[:length]) for length in range(len(parts), 0, -1)]
    candidates = [way for stem in ways for way in (stem, f"{stem}/__init__")]
    return next((way for way in candidates if way in FILES), "__init__")


def test_every_module_stands_in_one_room() -> None:
    places = Counter(module for room in ROOMS for module in room.modules)
    assert {module for module, count in places.items() if count > 1} == set()
    assert set(FILES) - set(places) == set(), "modules without a room"
    assert set(places) - set(FILES) == set(), "rooms without their modules"


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_a_room_may_import_only_what_stands_above_it(room: Room) -> None:
    above = ROOMS[: ROOMS.index(room)]
    assert room.rooms <= {other.name for other in above}
    assert room.single <= {module for other in above for module in other.modules}


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_modules_import_only_what_their_room_may(room: Room) -> None:
    legal = room.modules | room.single
    legal |= {module for other in ROOMS if other.name in room.rooms for module in other.modules}
    wrong = [
        f"{module} imports {imported}"
        for module in sorted(room.modules)
        for imported in sorted(set(_imported(FILES[module])))
        if imported not in legal
    ]
    assert not wrong
