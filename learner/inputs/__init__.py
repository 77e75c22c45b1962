"""The inputs of an example: which rows they are, and which ids get a row at all.

Read `slates` (the examples that are scored together), `example_inputs` (what the inputs are, and
finding their rows), `statistics` (counters of rows
as inputs), `admission` and `rare_rows` (ids without a row of their own), `preparation` (the
arguments of kernels), and `required_rows` (for learners that hold only some rows).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
