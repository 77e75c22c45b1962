"""Hypothesis settings of this part."""

from hypothesis import settings

# without a deadline: the first example of a run compiles kernels, or loads them
settings.register_profile("kernels", deadline=None, print_blob=True)
settings.load_profile("kernels")
