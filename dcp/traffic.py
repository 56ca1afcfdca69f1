"""Bytes that a plan's programs really move."""

from __future__ import annotations

import numpy as np

from dcp.arrays import IntArray
from dcp.blocks import BlockGraph
from dcp.cluster import Cluster
from dcp.instructions import KIND_OF_BUFFER, MESSAGE_ITEM, CommLaunch, Items, Program


def item_bytes(blocks: BlockGraph, program: Program, items: Items, slot: str = "slot") -> IntArray:
    """Bytes on the wire of what a slot of each item of a program holds, [items]."""
    kinds = KIND_OF_BUFFER[program.slots["buffer"][items[slot]]]
    bytes_of: IntArray = blocks.data_bytes[kinds, items["block"], items["group"]]
    return bytes_of


def moved_bytes(blocks: BlockGraph, cluster: Cluster, programs: list[Program]) -> tuple[int, int]:
    """Bytes that all ranks' programs of one phase send, in total and across nodes."""
    total = inter = 0
    node = cluster.device_node
    for rank, program in enumerate(programs):
        launches = [one for one in program.instructions if isinstance(one, CommLaunch)]
        sends = joined([launch.sends for launch in launches])
        size = item_bytes(blocks, program, sends)
        total += int(size.sum())
        inter += int(size[node[sends["peer"]] != node[rank]].sum())
    return total, inter


def joined(parts: list[Items]) -> Items:
    """Items of messages one after another; none where there are no parts."""
    # Named, the type need not be worked out from the fields of every part.
    return np.concatenate([np.zeros(0, dtype=MESSAGE_ITEM), *parts], dtype=MESSAGE_ITEM)
