"""What commands show on a terminal.

`progress_bars` shows the steps of commands that take minutes, and `tables` the results of others.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
