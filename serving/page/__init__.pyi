from .charts import WATCHED as WATCHED
from .experiment_reader import ExperimentReader as ExperimentReader
from .history import History as History
from .routes import page_routes as page_routes
from .status_reader import StatusReader as StatusReader
