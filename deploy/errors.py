"""Errors of the command line and of local pipelines. An operator can fix each of them."""


class DeployError(RuntimeError):
    """The message names the expected and the actual value, the place, and the remedy."""


class BadOption(DeployError):
    """An option or its environment variable has an invalid value."""


class PartFailed(DeployError):
    """A part of the pipeline refused to start or kept dying. Carries the end of its log."""


class Stuck(DeployError):
    """Events that were sent did not arrive, and nothing moved until the deadline."""
