"""Arrival of inputs and divisions of work, compiled."""

from __future__ import annotations

import numpy as np

from dcp.arrays import FloatArray, Int8Array, IntArray
from dcp.compiled import compiled


@compiled
def deal_inputs(
    device_ptr: IntArray,
    by_device: IntArray,
    source: IntArray,
    relay: IntArray,
    sending_s: FloatArray,
    first: IntArray,
    second: IntArray,
    comp_s: FloatArray,
    unlocked_ptr: IntArray,
    unlocked: IntArray,
    missing: Int8Array,
    worth_s: FloatArray,
    sent_s: FloatArray,
    steps: int,
    step_s: float,
    step: IntArray,
) -> None:
    """Choose the step of every input: greedily those that unlock most work for a second.

    Devices choose in turn, a different one first at each step. At a step a device receives what
    fits into the time, or one input, and a source sends what fits, or one.

    Args:
        device_ptr, by_device: Inputs of device d are by_device[device_ptr[d] : device_ptr[d + 1]].
        source: Device that sends each input, [n].
        relay: Input that arrives before each, n for none, [n].
        sending_s: Seconds that each input takes, [n].
        first, second: Inputs that each computation waits for, n for none, [C].
        comp_s: Seconds of each computation, [C].
        unlocked_ptr, unlocked: Computations that wait for input i are
            unlocked[unlocked_ptr[i] : unlocked_ptr[i + 1]].
        missing: Inputs that each computation misses, [C]; changed.
        worth_s: Seconds that each input unlocks, [n + 1]; half of what another input is missing
            for counts too. Changed.
        sent_s: Room, [devices].
        steps: After this step, everything may arrive.
        step_s: Seconds for which a device receives, and for which a source sends, at a step.
        step: Zeros; receives the steps, from 1 on, [n].
    """
    count, devices = len(sending_s), len(sent_s)
    left, now = count, 0
    while left:
        now += 1
        limit_s = step_s if now <= steps else np.inf
        for device in range(devices):
            sent_s[device] = 0.0
        for turn in range(devices):
            device = (turn + now) % devices
            received_s = 0.0
            while True:
                best, best_value = -1, -1.0
                for position in range(device_ptr[device], device_ptr[device + 1]):
                    item = by_device[position]
                    behind = relay[item] < count and not 0 < step[relay[item]] < now
                    if step[item] or behind:
                        continue
                    sends_s = sent_s[source[item]]
                    if sends_s > 0 and sends_s + sending_s[item] > limit_s:
                        continue
                    value = worth_s[item] / (sending_s[item] + 1e-12)
                    if value > best_value:
                        best, best_value = item, value
                if best < 0 or (received_s > 0 and received_s + sending_s[best] > limit_s):
                    break
                step[best] = now
                left -= 1
                received_s += sending_s[best]
                sent_s[source[best]] += sending_s[best]
                for position in range(unlocked_ptr[best], unlocked_ptr[best + 1]):
                    comp = unlocked[position]
                    missing[comp] -= 1
                    if missing[comp]:
                        other = second[comp] if first[comp] == best else first[comp]
                        worth_s[other] += 0.5 * comp_s[comp]


@compiled
def fill_divisions(
    device_ptr: IntArray,
    by_device: IntArray,
    release: IntArray,
    comp_s: FloatArray,
    division_s: float,
    division: IntArray,
) -> None:
    """Choose the division of every block: the first that are there, until a division is full.

    Args:
        device_ptr, by_device: Blocks of device d, most urgent first, are
            by_device[device_ptr[d] : device_ptr[d + 1]].
        release: First division that each block may be in, [C].
        comp_s: Seconds of each block, [C].
        division_s: Seconds of a division; what is left over joins the last one that inputs
            arrive for, or the last that is needed to do all in time.
        division: −1 each; receives the divisions, [C].
    """
    for device in range(len(device_ptr) - 1):
        begin, end = device_ptr[device], device_ptr[device + 1]
        left, done_s, now = end - begin, 0.0, 0
        while left:
            for position in range(begin, end):
                comp = by_device[position]
                if division[comp] >= 0 or release[comp] > now:
                    continue
                if done_s + 0.5 * comp_s[comp] > (now + 1) * division_s * (1 + 1e-9):
                    break
                division[comp] = now
                done_s += comp_s[comp]
                left -= 1
            now += 1
