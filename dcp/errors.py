"""Every error that dcp raises on purpose, under one root.

A message says what was given, what is legal and what to do next.
"""

from __future__ import annotations


class DcpError(Exception):
    """Root of all errors raised by dcp."""


class MaskError(DcpError, ValueError):
    """A mask is malformed, overlaps itself or does not fit its sequence."""


class BatchError(DcpError, ValueError):
    """Lengths or masks of a batch are illegal or do not belong together."""


class WorkloadError(DcpError, ValueError):
    """Lengths or documents to plan for cannot be read, or hold no tokens."""


class SpecError(DcpError, ValueError):
    """An attention spec, cluster or limit is illegal."""


class BackendError(DcpError):
    """A backend failed, crashed, timed out or answered outside its contract."""


class UnknownBackendError(DcpError, LookupError):
    """No backend has the given name; the message lists those that exist."""


class MissingPackageError(DcpError, ImportError):
    """An optional package is not installed; the message says what to install."""


class PlacementError(DcpError, ValueError):
    """A placement does not answer its problem (wrong shape, unknown device)."""


class ScheduleError(DcpError, ValueError):
    """A schedule cannot be executed (a source that does not hold what it sends, ...)."""


class PlanFormatError(DcpError, ValueError):
    """A plan file is damaged, is not a plan, or was written by a newer version."""


class PlanCheckError(DcpError, AssertionError):
    """A plan is wrong: names the rank, instruction and block of the first fault."""


class DigestMismatchError(DcpError, RuntimeError):
    """Ranks hold different plans, or have run different ones; shows both digests or hashes."""


class ShapeError(DcpError, ValueError):
    """A tensor does not fit the plan; the message shows both shapes."""


class DtypeError(DcpError, TypeError):
    """A tensor's dtype differs from the plan's."""


class TransportError(DcpError, RuntimeError):
    """A message did not arrive in time; names rank, peer, division and block."""


class ProfileError(DcpError, RuntimeError):
    """A profile cannot be taken or read: no profiler, a missing table, no ranges of the plan."""
