"""The networks' operations as Triton kernels, for bf16 on CUDA; imported only where those run."""
