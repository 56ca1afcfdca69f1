"""Executing plans: in one process, or on torch.distributed."""
