from .child_process import ChildProcess as ChildProcess
from .ports import free_port as free_port
from .ports import take_port as take_port
from .progress import SetupProgress as SetupProgress
from .progress import ShownSetupProgress as ShownSetupProgress
from .service_errors import StackError as StackError
from .services import LocalServices as LocalServices
from .valkey import ValkeyCluster as ValkeyCluster
