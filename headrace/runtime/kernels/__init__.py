"""Kernels: functions that numba compiles, and the files with their machine code.

`numba_kernels` has the decorators. `kernel_cache` finds and stores machine code, `kernel_sources`
tells whether it is current, and `kernel_files` writes it.
"""
