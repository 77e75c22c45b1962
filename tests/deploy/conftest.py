"""The fixture that several files of this folder run commands with."""

from tests.deploy.in_process import headrace

__all__ = ["headrace"]
