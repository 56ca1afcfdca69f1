"""A device's computation blocks in the order in which they are best done."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dcp.arrays import BoolArray, IntArray
from dcp.backends.overlap_inputs import Inputs
from dcp.runs import expand_runs
from dcp.scheduling import SchedulingProblem


@dataclass(frozen=True, kw_only=True, eq=False)
class DeviceWork:
    """Computation blocks and what becomes of their results.

    Blocks of a device that are part of the same result lie together; all that is left at home
    by a device counts as one result. Of two results that leave, the queries' counts.

    Attributes:
        inputs: What the blocks wait for.
        device_ptr: Where the blocks of each device begin in any order by device, [devices + 1].
        by_result: Blocks by device and result, [C].
        result_ptr: Where those of each result begin, [r + 1].
        result_device: Device of each result, [r].
        stays: Whether each result stays at home, [r].
        longest_s: Seconds of the device with most work.
    """

    inputs: Inputs
    device_ptr: IntArray
    by_result: IntArray
    result_ptr: IntArray
    result_device: IntArray
    stays: BoolArray
    longest_s: float

    @classmethod
    def of(cls, problem: SchedulingProblem, inputs: Inputs) -> DeviceWork:
        """Work of a placed batch in one phase."""
        result = inputs.of_query
        if problem.phase == "backward":
            result = np.where(result == len(inputs), inputs.of_key, result)
        device, devices = problem.comp_device, problem.cluster.num_devices
        key = device * (len(inputs) + 1) + result
        order = np.argsort(key, kind="stable")
        begins = np.flatnonzero(np.diff(key[order], prepend=-1))
        first = order[begins]
        return cls(
            inputs=inputs,
            device_ptr=np.searchsorted(device[order], np.arange(devices + 1)),
            by_result=order,
            result_ptr=np.append(begins, len(order)),
            result_device=device[first],
            stays=result[first] == len(inputs),
            longest_s=float(np.bincount(device, inputs.comp_s).max(initial=0)),
        )

    def divisions(self, step: IntArray, division_s: float) -> IntArray:
        """Division of each computation block, [C].

        Args:
            step: When each input arrives, [n].
            division_s: Seconds of work to put into a division.
        """
        from dcp.backends.overlap_kernel import fill_divisions  # compiled code

        arrival = np.append(step, 0)
        release = np.maximum(arrival[self.inputs.of_query], arrival[self.inputs.of_key])
        division = np.full(len(release), -1)
        fill_divisions(
            self.device_ptr,
            self._by_urgency(release),
            release,
            self.inputs.comp_s,
            division_s,
            division,
        )
        return division

    def _by_urgency(self, release: IntArray) -> IntArray:
        """Blocks by device, those whose result can be complete first come first, [C].

        What stays at home comes last.
        """
        complete = np.maximum.reduceat(release[self.by_result], self.result_ptr[:-1])
        order = np.lexsort((complete, self.stays, self.result_device))
        counts = np.diff(self.result_ptr)
        _, position = expand_runs(self.result_ptr[order], counts[order])
        return self.by_result[position]
