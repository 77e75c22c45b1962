from .bucket_lease import FoldPolicy as FoldPolicy
from .expiry import Expiry as Expiry
from .keeper import Keeper as Keeper
from .keeper_backlog import Watch as Watch
from .keeper_backlog import keeper_watches as keeper_watches
from .process import KeeperSettings as KeeperSettings
from .process import run_keeper as run_keeper
