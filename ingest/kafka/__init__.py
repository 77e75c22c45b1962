"""Kafka as the rest of headrace sees it: reader, writer, transactions, topics, and their fakes.

Other packages import these names from here and no Kafka client at all.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
