"""What backward finds in its slots is what forward has left there."""

from __future__ import annotations

import numpy as np

from dcp.instructions import Buffer
from dcp.verification.facts import Facts
from dcp.verification.program_check import CheckedProgram


def check_kept(
    facts: Facts, forward: CheckedProgram, contents: list[int], backward: CheckedProgram
) -> None:
    """Check one rank's hand-over.

    Args:
        facts: What the batch asks for.
        forward: Its forward program.
        contents: Codes of what that program's slots hold in the end.
        backward: Its backward program.

    Raises:
        PlanCheckError: an arena that is handed over has another size, or holds something else.
    """
    giver, taker = forward.program, backward.program
    for buffer in taker.kept_buffers:
        given, taken = int(giver.arena_rows[buffer]), int(taker.arena_rows[buffer])
        if given != taken:
            raise backward.site.fault(
                f"arena {Buffer(buffer).name} has {taken} rows; forward hands over {given}"
            )
    left = {
        (buffer, offset): code
        for (buffer, offset, _, _), code in zip(giver.slots.tolist(), contents, strict=True)
    }
    slots, kept = taker.slots, taker.kept
    codes = facts.data_code(backward.slot_kind[kept["slot"]], kept["block"], kept["group"])
    for (slot, block, group), code in zip(kept.tolist(), np.asarray(codes).tolist(), strict=True):
        buffer, offset, _, _ = slots[slot].tolist()
        if left.get((buffer, offset)) != code:
            raise backward.site.fault(
                f"slot {slot} is to hold {facts.name_of(code)} from forward, which leaves "
                "something else there",
                block=block,
                group=group,
            )
