"""Triton kernels for CUDA: pure functions of tensors. They import nothing from the rest of selfmark.

Only `selfmark.model.fused_backend` uses them, and it is imported only if Triton is installed.
"""
