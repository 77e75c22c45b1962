from .experiment import EVALUATION_WINDOW_S as EVALUATION_WINDOW_S
from .experiment import EVENTS_S as EVENTS_S
from .experiment import control_file as control_file
from .players import DemoSettings as DemoSettings
from .runner import run_demo as run_demo
