from .errors import ServingError as ServingError
from .process import ServerSettings as ServerSettings
from .process import run_server as run_server
