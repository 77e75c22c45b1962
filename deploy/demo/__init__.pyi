from .players import DemoSettings as DemoSettings
from .runner import run_demo as run_demo
