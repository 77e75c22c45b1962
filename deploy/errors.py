"""What can go wrong while the parts are put together, all of it for a person to read."""


class DeployError(RuntimeError):
    """The message says what was expected and found, where, and what to do."""


class BadOption(DeployError):
    """An option or its variable has a value that cannot be used."""


class PartFailed(DeployError):
    """A part of the road refused to run or kept dying; carries the end of its log."""


class Stuck(DeployError):
    """What was sent did not arrive: nothing moved for as long as the settings allow."""
