"""Define Triton kernels for CUDA as pure functions of tensors, independent of the rest of selfmark.

Only `selfmark.model.fused_backend` imports this package, and only if Triton is installed.
"""
