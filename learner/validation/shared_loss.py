"""The loss of the scores that the processes of a fit make, summed up in memory that they share.

Each staged file has sums of its own, and one process learns a file at a time, so no lock is needed.
The process that started the others reads the sums while they learn.
"""

import multiprocessing

from headrace.learner.validation.log_loss_sum import LogLossSum

_SIZE = LogLossSum.SIZE


class SharedLoss:
    """The sums of each file. Pickled for a new process, it is the same memory there."""

    def __init__(self, files: int) -> None:
        self._sums = multiprocessing.get_context("spawn").RawArray("d", _SIZE * files)

    def of_file(self, number: int) -> LogLossSum:
        """Return the sums of a file; what is added to them is shared."""
        return LogLossSum(memoryview(self._sums).cast("B").cast("d")[_SIZE * number :][:_SIZE])

    def total(self) -> LogLossSum:
        """Return a copy of the sums over all files."""
        total = LogLossSum()
        for number in range(len(self._sums) // _SIZE):
            total.include(self.of_file(number))
        return total
