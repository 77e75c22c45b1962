from .app import AppParts as AppParts
from .app import make_app as make_app
from .fast_path import FastPathProtocol as FastPathProtocol
from .request_metrics import RequestMetrics as RequestMetrics
