"""Links between headrace and its servers that a test can cut, freeze and mend.

Brokers and nodes advertise the ports of the links to clients, and use their own ports among
themselves. A cut link therefore separates headrace from one server that is healthy otherwise.
"""

import subprocess
import sys
from collections.abc import Sequence

from headrace.deploy.local.services.ports import free_port


class Links:
    """One link to each of the given ports. `ports` are those that clients connect to."""

    def __init__(self, targets: Sequence[int]) -> None:
        self.ports = {target: free_port() for target in targets}
        self._numbers = {target: number for number, target in enumerate(targets)}
        pairs = [f"{listen}:{target}" for target, listen in self.ports.items()]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.link_process", *pairs],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        with self._process.stdout as said:
            assert said.readline() == "ready\n", "expected links that listen"

    @property
    def pid(self) -> int:
        """The process that relays."""
        return self._process.pid

    def cut(self, target: int) -> None:
        """Close all connections to this port, and refuse new ones."""
        self._tell("cut", target)

    def freeze(self, target: int) -> None:
        """Carry nothing to and from this port, with connections left open."""
        self._tell("freeze", target)

    def mend(self, target: int) -> None:
        """Take `cut` or `freeze` back."""
        self._tell("mend", target)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _tell(self, command: str, target: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command} {self._numbers[target]}\n")
        self._process.stdin.flush()
