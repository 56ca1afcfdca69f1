"""The order in which a device's inputs arrive, compiled."""

from __future__ import annotations

import numba
import numpy as np

from dcp.arrays import FloatArray, IntArray


@numba.njit(cache=True)
def deal_inputs(
    device_ptr: IntArray,
    sending_s: FloatArray,
    first: IntArray,
    second: IntArray,
    comp_s: FloatArray,
    local_s: FloatArray,
    steps: int,
) -> IntArray:
    """Step of every input, from 1 on: greedily those that unlock most work for a second.

    A step closes once sending it takes as long as the division before computes, and at least an
    even share of all that the device receives.

    Args:
        device_ptr: Inputs of device d are device_ptr[d] … device_ptr[d + 1] - 1.
        sending_s: Seconds that each input takes, [n].
        first, second: The one or two inputs that each computation waits for, -1 for none, [c].
        comp_s: Seconds of each of those computations, [c].
        local_s: Seconds of each device's work that waits for nothing, [devices].
        steps: Even shares at most.
    """
    count = len(sending_s)
    ptr, comps = _by_input(first, second, count)
    missing = np.zeros(len(comp_s), np.int64)
    unlocks = np.zeros(count)
    helps = np.zeros(count)
    for comp in range(len(comp_s)):
        both = first[comp] >= 0 and second[comp] >= 0 and first[comp] != second[comp]
        missing[comp] = 2 if both else 1
        for item in (first[comp], second[comp]):
            if item >= 0:
                if both:
                    helps[item] += comp_s[comp]
                else:
                    unlocks[item] = unlocks[item] + comp_s[comp]
                    break
    step = np.zeros(count, np.int64)
    for device in range(len(device_ptr) - 1):
        begin, end = device_ptr[device], device_ptr[device + 1]
        share = sending_s[begin:end].sum() / steps
        cover, unlocked, sending, current = local_s[device], 0.0, 0.0, 1
        for _ in range(begin, end):
            best, best_value = -1, -1.0
            for item in range(begin, end):
                if step[item] == 0:
                    value = (unlocks[item] + 0.5 * helps[item]) / (sending_s[item] + 1e-12)
                    if value > best_value:
                        best, best_value = item, value
            if sending > 0 and sending >= max(cover, share) * (1 - 1e-9):
                cover, unlocked, sending = unlocked, 0.0, 0.0
                current += 1
            step[best] = current
            sending += sending_s[best]
            for position in range(ptr[best], ptr[best + 1]):
                comp = comps[position]
                missing[comp] -= 1
                if missing[comp] == 0:
                    unlocked += comp_s[comp]
                else:
                    other = second[comp] if first[comp] == best else first[comp]
                    unlocks[other] += comp_s[comp]
                    helps[other] -= comp_s[comp]
    return step


@numba.njit(cache=True)
def _by_input(first: IntArray, second: IntArray, count: int) -> tuple[IntArray, IntArray]:
    """Computations of every input, in compressed rows: ptr and computations."""
    ptr = np.zeros(count + 1, np.int64)
    for comp in range(len(first)):
        if first[comp] >= 0:
            ptr[first[comp] + 1] += 1
        if second[comp] >= 0 and second[comp] != first[comp]:
            ptr[second[comp] + 1] += 1
    ptr = np.cumsum(ptr)
    fill = ptr[:-1].copy()
    comps = np.zeros(ptr[-1], np.int64)
    for comp in range(len(first)):
        if first[comp] >= 0:
            comps[fill[first[comp]]] = comp
            fill[first[comp]] += 1
        if second[comp] >= 0 and second[comp] != first[comp]:
            comps[fill[second[comp]]] = comp
            fill[second[comp]] += 1
    return ptr, comps
