from .app import AppParts as AppParts
from .app import make_app as make_app
from .fast_path_probe import choose_protocol as choose_protocol
from .health import answers as answers
from .request_metrics import RequestMetrics as RequestMetrics
